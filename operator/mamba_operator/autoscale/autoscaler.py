"""`Autoscaler`: polls every deployment periodically and decides on its number of engines.

Wired by `main`; the reconcile passes carry out its latest decision. It takes deployments, engine pods and
gateways from the watches. Each of two pools has a decision of its own. In mode External the numbers are
published as metrics and not carried out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.pool_deployments import pool_deployments
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.fleet_view import FleetView, GatewayReport
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.observation import Observation
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import engine_report, gateway_report
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.autoscale.scaling_record import LatestDecision, ScalingRecord
from mamba_operator.autoscale.scaling_status import (
    advisory_config,
    autoscaler_config,
    recorded_scaling,
    wake_text,
)
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import CONFIG_MAP, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, is_terminating, name_of
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import (
    answers,
    has_ended,
    is_candidate,
    is_engine,
    is_gateway,
    role_of,
)
from mamba_operator.objects.recorded_status import with_readable_status
from mamba_operator.objects.serving_gateways import shared_gateways

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _ScalingSpec:
    """Holds what an object says about the number of its engines of one role."""

    config: AutoscalerConfig
    desired: int
    """Number of engines in force now: `status.scaling.desired`, or the pool's own."""
    start: int
    """spec.replicas, or replicas of the pool."""
    decides: bool
    """Whether this autoscaler sets the number; False = it only publishes metrics for another autoscaler."""
    answered_wake: str | None = None
    candidates_serve: bool = False
    """Whether candidates of a canary answer clients, rather than copies of requests or nobody."""


_ScalingSpecs = Mapping[Role, _ScalingSpec]
"""Scaling specs by role of the engines; empty where users set the number."""
_READERS_FIRST: tuple[Role, ...] = ("unified", "decode", "prefill")
"""Roles in the order of the decisions: prompts wait while the engines that read their states have no room."""


class _EngineState:
    """Holds what the autoscaler remembers of the engines of one role from one poll to the next."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self.config = config
        self.view = FleetView()
        self.memory = AutoscalerMemory()
        self.latest_decision: LatestDecision | None = None


class Autoscaler(PodPoller[_ScalingSpecs, dict[Role, _EngineState]]):
    """The part of the operator that decides on the number of engines of every deployment.

    There is one instance per active operator.

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
        self._specs: dict[Key, tuple[Manifest, _ScalingSpecs]] = {}
        """By deployment: the object that was parsed last, as the watches held it, and its scaling specs."""

    def latest_decisions(self, key: Key) -> dict[Role, LatestDecision]:
        """Return the last decision about the engines of each role of a deployment."""
        return {
            role: state.latest_decision
            for role, state in self._reports.get(key, {}).items()
            if state.latest_decision is not None
        }

    async def poll(self) -> None:
        """Poll every deployment once, all concurrently."""
        for key in self._specs.keys() - set(self._indices.keys(MAMBA_DEPLOYMENT)):
            del self._specs[key]
        await super().poll()

    def _forget(self, key: Key) -> None:
        super()._forget(key)
        self._metrics.forget(key)

    def _select(self, key: Key) -> _ScalingSpecs | None:
        """Return the scaling specs of a deployment; None if it does not exist, or users set its numbers.

        They are parsed once per version that the watches hold.
        """
        objects = self._indices.of(MAMBA_DEPLOYMENT, key)
        if len(objects) != 1:
            return None
        parsed = self._specs.get(key)
        if parsed is None or parsed[0] is not objects[0]:
            parsed = self._specs[key] = objects[0], dict(_scaling_specs(objects[0]))
        return parsed[1] or None

    async def _update(self, key: Key, selection: _ScalingSpecs) -> bool:
        states = self._reports.setdefault(key, {})
        for role in states.keys() - selection.keys():
            del states[role]
            self._metrics.forget(key, role)
        pods = [pod for pod in self._indices.of(POD, key) if _may_serve(pod)]
        gateways = await self._gateway_reports(key, pods)
        changed, readers_full = False, False
        for role in _READERS_FIRST:
            engines = [pod for pod in pods if is_engine(pod) and role_of(pod) == role]
            if (spec := selection.get(role)) is not None:
                changes, readers_full = await self._update_role(
                    key, role, spec, engines, gateways, readers_full
                )
                changed = changed or changes
            elif role == "decode" and "prefill" in selection:
                readers_full = await self._are_full(engines, selection["prefill"].config)
        return changed

    async def _gateway_reports(self, key: Key, pods: Iterable[Manifest]) -> dict[str, GatewayReport | None]:
        """Return the reports of the deployment's gateways, and of the MambaGateways that serve its model."""
        own = [pod for pod in pods if is_gateway(pod) and answers(pod)]
        reports = dict(await pod_reports(self._read, own, gateway_report))
        for gateway, models in shared_gateways(self._indices, key):
            shared = [pod for pod in self._indices.of(POD, gateway) if is_gateway(pod) and answers(pod)]
            reports |= await pod_reports(
                self._read, shared, partial(gateway_report, models=frozenset(models))
            )
        return reports

    async def _are_full(self, engines: Sequence[Manifest], config: AutoscalerConfig) -> bool:
        """Return whether none of the decode engines that report has room for another state.

        The result is False if no engine reports.
        """
        ready = [pod for pod in engines if answers(pod)]
        reports = await pod_reports(self._read, ready, lambda text: engine_report(text, config, "decode"))
        room = [report.credits for report in reports.values() if report is not None]
        return bool(room) and not any(room)

    async def _update_role(
        self,
        key: Key,
        role: Role,
        spec: _ScalingSpec,
        engines: Sequence[Manifest],
        gateways: Mapping[str, GatewayReport | None],
        readers_full: bool,
    ) -> tuple[bool, bool]:
        """Decide on the engines of one role.

        Return whether a pass has to look at the decision, and whether engines of the role have no room for
        states of other engines. `engines` are the pods of the role, and `gateways` the reports of the
        gateways. `readers_full` says whether the engines that read the states of `engines` have no room for
        more states.
        """
        config, states = spec.config, self._reports[key]
        state = states.get(role)
        if state is None or state.config != config:
            # The memory of decisions with other bounds and targets does not apply to these.
            state = states[role] = _EngineState(config)
        observation = await self._observed(key, role, spec, state, engines, gateways, readers_full)
        before = state.memory
        decision = decide(observation, config, before)
        state.memory = decision.memory
        self._metrics.show(key, observation, decision, role)
        load = observation.load
        is_full = load is not None and load.engines > 0 and not load.credits
        if not spec.decides:
            state.latest_decision = None
            return False, is_full
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
                role=role,
                before=spec.desired,
                after=decision.target,
                why=decision.reason,
            )
        return changes or blindness_changed, is_full

    async def _observed(
        self,
        key: Key,
        role: Role,
        spec: _ScalingSpec,
        state: _EngineState,
        engines: Sequence[Manifest],
        gateways: Mapping[str, GatewayReport | None],
        readers_full: bool,
    ) -> Observation:
        """Read the metrics of the engines of one role; return the observation of them and of the gateways.

        The parameters are those of `_update_role`.
        """
        # Engines of a canary come on top: one that does not start, or ends, keeps no other from starting.
        lasting = [pod for pod in engines if not is_candidate(pod)]
        ready = [pod for pod in lasting if answers(pod)]
        candidates = [pod for pod in engines if is_candidate(pod) and answers(pod)]
        woken = wake_text(next(iter(self._wakes(key)), None)) if role == "unified" else None
        return state.view.observe(
            self._now(),
            desired=spec.desired,
            ready=await pod_reports(self._read, ready, lambda text: engine_report(text, spec.config, role)),
            pending=tuple(name_of(pod) for pod in lasting if pod not in ready),
            gateways=gateways,
            candidates=await pod_reports(
                self._read,
                candidates if spec.candidates_serve else (),
                lambda text: engine_report(text, spec.config, role),
            ),
            woken=woken is not None and woken != spec.answered_wake,
            readers_full=readers_full,
        )

    def _wakes(self, key: Key) -> list[Manifest]:
        wake_name = names.Children(key.name).wake
        return [config for config in self._indices.of(CONFIG_MAP, key) if name_of(config) == wake_name]


def _scaling_specs(owner: Manifest) -> Iterator[tuple[Role, _ScalingSpec]]:
    """Yield each role for which the autoscaler computes a number of engines, with its scaling spec.

    No role is yielded for a deployment that is being deleted, is invalid, is in mode Plan, or has no bounds.
    """
    if is_terminating(owner):
        return
    try:
        deployment = MambaDeployment.model_validate(with_readable_status(owner), by_alias=True, by_name=False)
    except ValidationError:
        return
    if deployment.spec.mode == "Plan":
        return
    canary = deployment.status.canary if deployment.status is not None else None
    serve = canary is not None and canary.weight > 0
    for role, part in pool_deployments(deployment).items():
        replicas, scaling = part.spec.replicas, recorded_scaling(part.status, role)
        if (config := advisory_config(part)) is not None:
            yield role, _ScalingSpec(config, replicas, replicas, decides=False, candidates_serve=serve)
        elif (config := autoscaler_config(part, role)) is not None and scaling is not None:
            yield (
                role,
                _ScalingSpec(
                    config,
                    scaling.desired,
                    replicas,
                    decides=True,
                    answered_wake=scaling.answered_wake,
                    candidates_serve=serve,
                ),
            )


def _may_serve(pod: Manifest) -> bool:
    """Return whether the pod serves or may serve soon. A draining pod does not."""
    return not is_terminating(pod) and not has_ended(pod)
