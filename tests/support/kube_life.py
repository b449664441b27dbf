"""One MambaDeployment on a real API server and the operator that sees to it, whose passes a test runs itself.

No kubelet runs pods; the test writes their status as one does.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.profiles import Profiles
from mamba_kube.api_server import MERGE_PATCH, ApiServer
from mamba_kube.errors import ApiError
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.children.engine_admin import EngineAccess, Put, put_strategy
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import OperatorError
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, OWNED, POD, SECRET, Kind
from mamba_operator.objects.manifest import Key, Manifest, metadata
from mamba_operator.observation.snapshot import Sources
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, Reconciler, Runtime, now_utc
from mamba_operator.render.context import OF_THIS_VERSION, ChildDefaults
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_planner.cards.shipped_profiles import SHIPPED
from operator_objects import nano_config
from struck_server import Blow, Killed, StruckServer

PASSES = 200
"""Most passes until one has nothing to do; they wait a moment for the cluster's controllers."""
ADMIN_KEY = AdminKey(bytes(range(32)))
FITS = {
    "model": {"uri": "pvc://models/nano", "config": nano_config()}, "memory": {"deviceMemory": "80Gi"},
}  # fmt: skip
LONG_AGO = "2026-01-02T11:00:00Z"
FLEETING = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences"}
OF_THE_SERVER = {"clusterIP", "clusterIPs", "volumeName"}
PASSING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9a-f]{5,64}(-[0-9a-f]{4,12})*\b|"
    r'(?<=ReplicaSet \\\\\\")[^"\\]+'
)
"""Moments, hashes, which depend on the name of the object, and names that controllers make."""
READY = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}


class OnlyTheOwner(Indices):
    """Watch caches that hold only the owner, as directly after its creation."""

    def __init__(self, owner: Manifest) -> None:
        super().__init__()
        self._owner = owner

    def childless(self, key: Key) -> Manifest | None:
        return self._owner


class Life:
    """The object, and the operator whose passes `until` runs; blows may end that, and another goes on."""

    def __init__(
        self,
        server: ApiServer,
        key: Key,
        blows: Mapping[str, Blow] | None = None,
        *,
        removed: bool = False,
        put: Put = put_strategy,
        now: Callable[[], datetime] = now_utc,
        measured: Callable[[Key], MeasuredWorkload | None] = lambda _: None,
    ) -> None:
        """Start. blows: how some writes fail, by their names; removed: the object is deleted before each."""
        self.key, self._put, self._now, self._measured = key, put, now, measured
        self.profiles: Profiles = SHIPPED
        """Profiles of the next operator."""
        self.images, self.most_rollouts = OF_THIS_VERSION, 3
        """The same."""
        self.latest_decision: LatestDecision | None = None
        """Latest decision of the autoscaler."""
        self._server, self.kube = server, KubeClient(server)
        self.struck = StruckServer(server, key, blows or {}, self.remove if removed else self._nothing)
        self.restart()

    def restart(self, indices: Indices | None = None) -> None:
        """Start another operator, which knows only what its watches hold."""
        kube = KubeClient(self.struck)
        self._operator = Reconciler(
            kube,
            OperatorMetrics(),
            PassSettings("test", max_rollouts=self.most_rollouts),
            indices=indices or Indices(),
            defaults=ChildDefaults(images=self.images, profiles=self.profiles),
            engines=EngineAccess(ADMIN_KEY, self._put),
            sources=Sources(
                latest_decisions=lambda _: {"unified": self.latest_decision} if self.latest_decision else {},
                measured=lambda key: {"unified": found} if (found := self._measured(key)) else {},
            ),
            runtime=Runtime(now=self._now),
        )

    def set_clock(self, now: Callable[[], datetime]) -> None:
        """Set the clock of this operator and of those after it."""
        self._now = now
        self.restart()

    async def _nothing(self) -> None:
        pass

    async def make(self, **spec: Any) -> None:
        manifest = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": {**FITS, **spec}}
        named = {"name": self.key.name, "namespace": self.key.namespace}
        self.restart(OnlyTheOwner(await self.kube.create({**manifest, "metadata": named})))

    async def owner(self) -> Manifest:
        return await self.kube.get(MAMBA_DEPLOYMENT, self.key.namespace, self.key.name) or {}

    async def change(self, **spec: Any) -> None:
        await self.kube.merge(MAMBA_DEPLOYMENT, self.key.namespace, self.key.name, {"spec": spec})

    async def remove(self) -> None:
        uid = str(metadata(await self.owner()).get("uid"))
        await self.kube.delete(MAMBA_DEPLOYMENT, self.key.namespace, self.key.name, uid)

    async def pass_is_idle(self) -> bool:
        """Run one pass, of a new operator if that one dies; return whether it succeeds without a write."""
        before = self.struck.writes
        try:
            await self._operator(self.key)
        except OperatorError:
            return False
        except Killed:
            self.restart()
            return False
        return self.struck.writes == before

    async def until(self, done: Callable[[], Awaitable[Any]]) -> Any:
        """Pass after pass, until one is calm and `done` is true after it."""
        for number in range(PASSES):
            if await self.pass_is_idle() and (result := await done()):
                return result
            await asyncio.sleep(0.0 if number < 4 else 0.2)
        status, struck = (await self.owner()).get("status"), self.struck.struck
        raise AssertionError(f"{self.key} does not come to rest; {struck} were struck: {status}")

    async def settle(self) -> None:
        async def always() -> bool:
            return True

        await self.until(always)

    async def pods(self, component: names.Component) -> list[Manifest]:
        selector = ",".join(
            f"{key}={value}" for key, value in names.selector(self.key.name, component).items()
        )
        return await self.kube.list(POD, self.key.namespace, selector=selector)

    async def set_pod_status(self, pod: Manifest, **status: Any) -> None:
        """Write the status of a pod as a kubelet does."""
        path = POD.path(self.key.namespace, metadata(pod)["name"], "status")
        await self._server.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    async def bind(self, pod: Manifest, node: str) -> None:
        """Bind the pod as the scheduler does; the node need not exist."""
        name, target = metadata(pod)["name"], {"kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._server.request("POST", POD.path(self.key.namespace, name, "binding"), body=body)

    async def ready(self, component: names.Component) -> None:
        """Report the component's pods as ready, except those that are replaced."""
        for pod in await self.until(lambda: self.pods(component)):
            try:
                await self.set_pod_status(pod, phase="Running", conditions=[READY])
            except ApiError as error:
                if error.status != 404:
                    raise

    async def condition(self, kind: str) -> tuple[str, str, str]:
        """Return the status, reason and message."""
        conditions = ((await self.owner()).get("status") or {}).get("conditions") or ()
        match = {one["type"]: one for one in conditions}.get(kind) or {}
        return match.get("status", ""), match.get("reason", ""), match.get("message", "")

    async def becomes(self, kind: str, reason: str) -> str:
        """Wait until the condition has the reason and return its message."""

        async def so() -> str:
            _, now, message = await self.condition(kind)
            return message if now == reason else ""

        return str(await self.until(so))

    async def child(self, kind: Kind, name: str) -> Manifest | None:
        return await self.kube.get(kind, self.key.namespace, name)

    async def shape(self) -> list[str]:
        """Return the contents of the children, without the parts that differ between objects."""
        uid = str(metadata(await self.owner()).get("uid"))[:8]
        selector = f"{names.LABEL_INSTANCE}={self.key.name},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        lists = [self.kube.list(kind, self.key.namespace, selector=selector) for kind in (SECRET, *OWNED)]
        children = [lasting(one) for some in await asyncio.gather(*lists) for one in some]
        texts = (json.dumps(one, sort_keys=True).replace(uid, "UID") for one in children)
        return sorted(PASSING.sub("PASSING", text.replace(self.key.name, "NAME")) for text in texts)


def lasting(one: Manifest) -> Manifest:
    """Return the part of a child that is the same in every run; only the data of a Secret."""
    kept = {key: value for key, value in one.items() if key not in ("metadata", "spec", "status", "data")}
    meta = {key: value for key, value in metadata(one).items() if key not in FLEETING}
    notes = meta.get("annotations") or {}
    meta["annotations"] = {key: value for key, value in notes.items() if key.startswith(names.GROUP)}
    spec = {key: value for key, value in (one.get("spec") or {}).items() if key not in OF_THE_SERVER}
    data = one.get("data") or {}
    return {**kept, "metadata": meta, "spec": spec, "data": sorted(data) if one["kind"] == "Secret" else data}
