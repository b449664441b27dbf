"""`Autoscaler`: looks at deployments, over and over, and decides how many engines each of them needs.

Beside the reconcile passes, which only carry out what it last decided: a pod that does not answer delays none
of them. Which deployments, pods and gateways there are it takes from the watches; it writes nothing. In mode
External its numbers are shown and not carried out.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.fleet_view import FleetView
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import engine_report, gateway_report
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.autoscale.scaling_record import LatestDecision, ScalingRecord
from mamba_operator.autoscale.scaling_status import advisory_config, autoscaler_config, wake_text
from mamba_operator.objects.concurrency import run_concurrently
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import CONFIG_MAP, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, is_terminating, name_of
from mamba_operator.objects.pod_trouble import answers, has_ended, is_engine, is_gateway
from mamba_operator.objects.recorded_status import with_readable_status

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _ScalingSpec:
    """What the object says about its number."""

    config: AutoscalerConfig
    asked: int
    """Engines in force."""
    start: int
    """spec.replicas."""
    decides: bool
    """False: somebody else does, by what is shown here or by something else."""
    answered_wake: str | None = None


class _DeploymentState:
    """What is kept of one deployment between two looks."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self.config = config
        self.view = FleetView()
        self.memory = AutoscalerMemory()
        self.latest_decision: LatestDecision | None = None


class Autoscaler:
    """Of one operator that acts.

    Args:
        indices: what the watches hold.
        read: gives the `/metrics` of a pod.
        wake: told which deployment shall have another number of engines.
        metrics: where demand and capacity are shown.
        period: seconds between two looks.
        now: a clock that nobody sets.
    """

    def __init__(
        self,
        indices: Indices,
        read: ReadMetrics,
        wake: Callable[[Key], None],
        metrics: ScalingMetrics,
        *,
        period: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._indices, self._read, self._wake = indices, read, wake
        self._metrics, self._period, self._now = metrics, period, now
        self._watched: dict[Key, _DeploymentState] = {}
        self._said: dict[Key, tuple[Manifest, _ScalingSpec | None]] = {}
        """Each object as the watches held it, and what it said."""

    def latest_decision(self, key: Key) -> LatestDecision | None:
        """The last decision about a deployment."""
        watched = self._watched.get(key)
        return watched.latest_decision if watched is not None else None

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            began = self._now()
            await self.look()
            await asyncio.sleep(max(self._period - (self._now() - began), self._period / 10))

    async def look(self) -> None:
        """Once at every deployment, all at the same time."""
        keys = self._indices.keys(MAMBA_DEPLOYMENT)
        scaled = {key: found for key in keys if (found := self._scaled(key))}
        for key in self._said.keys() - set(keys):
            del self._said[key]
        for key in self._watched.keys() - scaled.keys():
            del self._watched[key]
            self._metrics.forget(key)
        looks = {key: self._look_at(key, found) for key, found in scaled.items()}
        await run_concurrently(looks, "autoscaler_broken")

    def _scaled(self, key: Key) -> _ScalingSpec | None:
        """What the object says; read once, for as long as the watches hold that very version."""
        found = self._indices.of(MAMBA_DEPLOYMENT, key)
        if len(found) != 1:
            return None
        known = self._said.get(key)
        if known is None or known[0] is not found[0]:
            known = self._said[key] = found[0], _scaling_spec(found[0])
        return known[1]

    async def _look_at(self, key: Key, scaled: _ScalingSpec) -> None:
        config = scaled.config
        watched = self._watched.get(key)
        if watched is None or watched.config != config:
            # What was learned of other bounds and targets is not what these ask for.
            watched = self._watched[key] = _DeploymentState(config)
        pods = [pod for pod in self._indices.of(POD, key) if _lives(pod)]
        engines = [pod for pod in pods if is_engine(pod)]
        ready = [pod for pod in engines if answers(pod)]
        doors = [pod for pod in pods if is_gateway(pod) and answers(pod)]
        told, heard = await asyncio.gather(
            pod_reports(self._read, ready, lambda text: engine_report(text, config)),
            pod_reports(self._read, doors, gateway_report),
        )
        woken = wake_text(next(iter(self._wakes(key)), None))
        seen = watched.view.observe(
            self._now(),
            asked=scaled.asked,
            ready=told,
            pending=tuple(name_of(pod) for pod in engines if pod not in ready),
            gateways=heard,
            woken=woken is not None and woken != scaled.answered_wake,
        )
        before = watched.memory
        made = decide(seen, config, before)
        watched.memory = made.memory
        self._metrics.show(key, seen, made)
        if not scaled.decides:
            watched.latest_decision = None
            return
        changes = made.target != scaled.asked
        record = ""
        if changes:
            record = ScalingRecord(config=config, observation=seen, memory=before, decision=made).encode()
        watched.latest_decision = LatestDecision(scaled.asked, scaled.start, made, record)
        if changes:
            log.info("engines_decided", key=str(key), before=scaled.asked, after=made.target, why=made.reason)
            self._wake(key)

    def _wakes(self, key: Key) -> list[Manifest]:
        wanted = names.Children(key.name).wake
        return [one for one in self._indices.of(CONFIG_MAP, key) if name_of(one) == wanted]


def _scaling_spec(owner: Manifest) -> _ScalingSpec | None:
    """None where spec.replicas is a number that people write."""
    if is_terminating(owner):
        return None
    try:
        deployment = MambaDeployment.model_validate(with_readable_status(owner), by_alias=True, by_name=False)
    except ValidationError:
        return None
    replicas, status = deployment.spec.replicas, deployment.status
    if deployment.spec.mode == "Plan":
        return None
    if (config := advisory_config(deployment)) is not None:
        return _ScalingSpec(config, replicas, replicas, decides=False)
    config = autoscaler_config(deployment)
    if config is None or status is None or status.scaling is None:
        return None
    return _ScalingSpec(
        config, status.scaling.desired, replicas, decides=True, answered_wake=status.scaling.answered_wake
    )


def _lives(pod: Manifest) -> bool:
    """Whether the pod may still serve, or be about to; one that drains is on its way out."""
    return not is_terminating(pod) and not has_ended(pod)
