"""`Autoscaler`: polls every deployment periodically and decides on its number of engines.

Wired by `main`; the reconcile passes carry out its latest decision. It takes deployments, engine pods and
gateways from the watches. In mode External its numbers are published as metrics and not carried out.
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
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import CONFIG_MAP, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, is_terminating, name_of
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import answers, has_ended, is_engine, is_gateway
from mamba_operator.objects.recorded_status import with_readable_status

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _ScalingSpec:
    """The part of an object that determines its number of engines."""

    config: AutoscalerConfig
    desired: int
    """Number of engines in force now (`status.scaling.desired`)."""
    start: int
    """spec.replicas."""
    decides: bool
    """Whether this autoscaler sets the number; False = it only publishes metrics for another autoscaler."""
    answered_wake: str | None = None


class _DeploymentState:
    """State of one deployment between two polls."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self.config = config
        self.view = FleetView()
        self.memory = AutoscalerMemory()
        self.latest_decision: LatestDecision | None = None


class Autoscaler(PodPoller[_ScalingSpec, _DeploymentState]):
    """Decider on the number of engines of every deployment. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        read: reads the `/metrics` of a pod.
        wake: called with each deployment whose number of engines is to change.
        metrics: publishes demand and capacity.
        period: seconds between two polls.
        now: monotonic clock, in seconds.
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
        super().__init__(indices, wake, period=period, failure_event="autoscaler_poll_failed", now=now)
        self._read, self._metrics = read, metrics
        self._specs: dict[Key, tuple[Manifest, _ScalingSpec | None]] = {}
        """Deployment -> (object that was parsed last, as the watches held it; its scaling spec)."""

    def latest_decision(self, key: Key) -> LatestDecision | None:
        """Return the last decision about a deployment."""
        state = self._reports.get(key)
        return state.latest_decision if state is not None else None

    async def poll(self) -> None:
        """Poll every deployment once, all concurrently."""
        for key in self._specs.keys() - set(self._indices.keys(MAMBA_DEPLOYMENT)):
            del self._specs[key]
        await super().poll()

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        self._metrics.forget(key)

    def _select(self, key: Key) -> _ScalingSpec | None:
        """Return the scaling spec of the object, parsed once per version that the watches hold."""
        objects = self._indices.of(MAMBA_DEPLOYMENT, key)
        if len(objects) != 1:
            return None
        parsed = self._specs.get(key)
        if parsed is None or parsed[0] is not objects[0]:
            parsed = self._specs[key] = objects[0], _scaling_spec(objects[0])
        return parsed[1]

    async def _update(self, key: Key, selection: _ScalingSpec) -> bool:
        spec, config = selection, selection.config
        state = self._reports.get(key)
        if state is None or state.config != config:
            # The memory of decisions with other bounds and targets does not apply to these.
            state = self._reports[key] = _DeploymentState(config)
        pods = [pod for pod in self._indices.of(POD, key) if _may_serve(pod)]
        engines = [pod for pod in pods if is_engine(pod)]
        ready = [pod for pod in engines if answers(pod)]
        gateways = [pod for pod in pods if is_gateway(pod) and answers(pod)]
        engine_reports, gateway_reports = await asyncio.gather(
            pod_reports(self._read, ready, lambda text: engine_report(text, config)),
            pod_reports(self._read, gateways, gateway_report),
        )
        woken = wake_text(next(iter(self._wakes(key)), None))
        observation = state.view.observe(
            self._now(),
            desired=spec.desired,
            ready=engine_reports,
            pending=tuple(name_of(pod) for pod in engines if pod not in ready),
            gateways=gateway_reports,
            woken=woken is not None and woken != spec.answered_wake,
        )
        before = state.memory
        decision = decide(observation, config, before)
        state.memory = decision.memory
        self._metrics.show(key, observation, decision)
        if not spec.decides:
            state.latest_decision = None
            return False
        changes = decision.target != spec.desired
        last = state.latest_decision
        blindness_changed = decision.blind != (last.decision.blind if last is not None else "")
        record = ""
        if changes:
            record = ScalingRecord(
                config=config, observation=observation, memory=before, decision=decision
            ).encode()
        state.latest_decision = LatestDecision(spec.desired, spec.start, decision, record)
        if changes:
            log.info(
                "engines_decided",
                key=str(key),
                before=spec.desired,
                after=decision.target,
                why=decision.reason,
            )
        return changes or blindness_changed

    def _wakes(self, key: Key) -> list[Manifest]:
        wake_name = names.Children(key.name).wake
        return [config for config in self._indices.of(CONFIG_MAP, key) if name_of(config) == wake_name]


def _scaling_spec(owner: Manifest) -> _ScalingSpec | None:
    """Return the scaling spec; None where users set spec.replicas."""
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


def _may_serve(pod: Manifest) -> bool:
    """Return whether the pod serves or may serve soon; a draining pod does not count."""
    return not is_terminating(pod) and not has_ended(pod)
