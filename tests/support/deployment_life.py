"""A deployment in a fake cluster: its operator, and a hand that plays controllers and users."""

from datetime import timedelta
from typing import Any

from fake_cluster import FakeCluster
from mamba_api import names
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.canary.analysis import CanaryFigures
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.snapshot import Sources
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime
from mamba_operator.rollout.attempts import Attempts
from operator_objects import NOW, TOKEN, fitting_owner

KEY = Key("models", "nano")
POD = {"app.kubernetes.io/instance": "nano", "app.kubernetes.io/managed-by": "mambaserve-operator",
       "app.kubernetes.io/component": "engine"}  # fmt: skip


class Life:
    """A cluster, its operator, and a hand that plays controllers and users."""

    def __init__(self, owner: Manifest) -> None:
        self.cluster = FakeCluster(owner)
        self.now = NOW
        self.latest_decision: LatestDecision | None = None
        self.attempts: dict[str, Attempts] = {}
        self.canary: CanaryFigures | None = None
        self._reconciler = Reconciler(
            self.cluster, OperatorMetrics(), PassSettings("test", resync=lambda: 300.0),
            runtime=Runtime(now=lambda: self.now, new_token=lambda: TOKEN),
            sources=Sources(
                lambda _: {"unified": self.latest_decision} if self.latest_decision else {},
                lambda _: self.attempts,
                canary=lambda _: self.canary,
            ),
        )  # fmt: skip
        self._event_counts: dict[str, int] = {}

    async def reconcile(self, **after: float) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """Return conditions after one pass, and the reasons of the events that it posted."""
        self.now += timedelta(**after)
        self.requeue_after = await self._reconciler(KEY)
        await self._reconciler.events.flush()
        status = self.cluster.find("MambaDeployment", "nano")["status"]
        events = {key[2]: one for key, one in self.cluster.objects.items() if key[0] == "Event"}
        fresh = sorted(
            one["reason"] for name, one in events.items() if one["count"] != self._event_counts.get(name, 0)
        )
        self._event_counts = {name: one["count"] for name, one in events.items()}
        return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}, fresh

    def spec(self, generation: int, **spec: Any) -> None:
        """Edit the object; its status stays."""
        of = self.cluster.find("MambaDeployment", "nano")
        edited = fitting_owner(**spec)
        edited["metadata"]["generation"] = generation
        self.cluster.put({**edited, "status": of["status"]})

    def restart(self, when: str) -> None:
        of = self.cluster.find("MambaDeployment", "nano")
        marks = {names.ANNOTATION_RESTART: when}
        self.cluster.put({**of, "metadata": {**of["metadata"], "annotations": marks}})

    def wake(self) -> None:
        """Report a request that a gateway holds."""
        request = self.cluster.find("ConfigMap", "nano-wake")
        self.cluster.put({**request, "data": {names.WAKE_KEY: self.now.isoformat()}})

    def controllers(self, *, engines: int, updated: int | None = None, replicas: int | None = None) -> None:
        """Report the state of the roll-out as the Deployment controller does."""
        for name, ready in (("nano-engine", engines), ("nano", 1)):
            one = self.cluster.find("Deployment", name)
            desired = one["spec"]["replicas"]
            is_engine = name == "nano-engine"
            one["status"] = {
                "observedGeneration": one["metadata"]["generation"],
                "replicas": replicas if replicas is not None and is_engine else desired,
                "updatedReplicas": updated if updated is not None and is_engine else desired,
                "readyReplicas": ready,
            }
            self.cluster.put(one)

    def pod(self, name: str, **status: Any) -> None:
        meta = {"name": name, "namespace": "models", "labels": POD}
        self.cluster.put({"kind": "Pod", "metadata": meta, "status": {"phase": "Running", **status}})


async def served() -> Life:
    life = Life(fitting_owner())
    await life.reconcile()
    life.controllers(engines=1)
    await life.reconcile()
    return life
