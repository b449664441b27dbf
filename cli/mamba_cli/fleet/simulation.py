"""`Simulation`: a discrete-event simulation of a fleet, with requests, engine steps, scaling and pods."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from mamba_api.choices import Role
from mamba_cli.fleet.engine import SimulatedEngine, cache_of
from mamba_cli.fleet.engine_group import EngineGroup, Scaler, ScalingHistory
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.pod import Pod
from mamba_cli.fleet.request import Request, RequestTransit, requests_of
from mamba_cli.fleet.sample import EngineSample, FleetSample
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream

PROBE_SECONDS = 1.0
"""Interval in seconds at which gateways read the load of the engines."""
GatewayMaker = Callable[..., SimulatedGateway]
"""Constructor of a gateway, with the parameters of `SimulatedGateway`."""
SPOT_NOTICE_SECONDS = 120.0
"""Seconds between the spot notice of a machine and its end."""


class Simulation:
    """Simulates a fleet of engines behind a gateway.

    Call `run` once, then read `requests`, `pods` and `history`.
    """

    def __init__(
        self,
        stream: RequestStream,
        profile: EngineProfile,
        router: GatewayMaker,
        scaler: Scaler,
        slo: Slo,
        conditions: FleetEnvironment,
        seed: int = 0,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.stream, self.profile, self.slo, self.conditions = stream, profile, slo, conditions
        self.groups = self._groups(scaler)
        self.now = 0.0
        self._rng = Random(f"pods {seed}")
        self._progress = progress
        arrivals = stream.workload.arrivals
        self._longest = max((a.input_tokens + a.output_tokens for a in arrivals), default=1)
        self.requests = requests_of(stream)
        self.pods: list[Pod] = []
        self.refused = 0
        self._failure_budget = float("inf")
        self._failed = 0
        self._alive: dict[str, Pod] = {}
        self._routable: dict[str, SimulatedEngine] = {}
        self._gateway = router(self._routable, lambda: self.now, identity=stream.identity, seed=seed)
        self._unrouted: deque[Request] = deque()
        self._arrived = self._open = 0
        self._transits: dict[int, RequestTransit] = {}
        self._transit_rng = Random(f"transit {seed}")
        self._slowness = 1.0
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._order = itertools.count()

    def run(self, least_attainment: float | None = None) -> None:
        """Simulate until all requests have ended.

        Args:
            least_attainment: SLO attainment at which to stop as soon as it is out of reach; None = never.
        """
        if least_attainment is not None:
            self._failure_budget = (1 - least_attainment) * len(self.requests)
        for group in self.groups.values():
            for _ in range(group.target):
                self._ready(self._create(group.role))
        for request in self.requests:
            self._schedule(request.arrived_at, self._arrival, request)
        self._schedule(0.0, self._probe, None)
        for group in self.groups.values():
            self._schedule(0.0, self._scrape, group)
        while (self._arrived < len(self.requests) or self._open) and not self.given_up:
            self.now, _, handler, argument = heapq.heappop(self._events)
            handler(argument)
            self._share_cores()

    def _groups(self, scaler: Scaler) -> dict[Role, EngineGroup]:
        return {"unified": EngineGroup("unified", scaler, self.conditions, self.slo.ttft)}

    @property
    def _caches_prefixes(self) -> bool:
        return self.stream.identity

    @property
    def history(self) -> ScalingHistory:
        """Targets and supply of the unified engines."""
        return self.groups["unified"].history

    @property
    def given_up(self) -> bool:
        """Whether too many requests have missed the SLO to reach `least_attainment`."""
        return self._failed > self._failure_budget

    def _schedule(self, when: float, handler: Callable[..., None], argument: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), handler, argument))

    # --- requests ------------------------------------------------------------------------------------

    def _arrival(self, request: Request) -> None:
        self._arrived += 1
        if request.number % 256 == 0:
            self._progress(self.now / max(self.stream.seconds, 1.0))
        if self.pods[0].engine.cache.capacity.never_fits(request.prompt_tokens + request.outputs):
            self.refused += 1
            request.lost = True
            return
        self._open += 1
        seconds = self.conditions.machine.transit(request.prompt_tokens, self._transit_rng)
        if not seconds:
            self._send(request)
            return
        transit = RequestTransit(request, self.now + seconds * self._slowness)
        self._transits[request.number] = transit
        self._schedule(transit.end, self._transit_ended, (transit, transit.version))

    def _transit_ended(self, versioned: tuple[RequestTransit, int]) -> None:
        transit, version = versioned
        if version == transit.version:
            del self._transits[transit.request.number]
            self._send(transit.request)

    def _share_cores(self) -> None:
        """Update the slowdown of engines and transits that share the cores of one machine."""
        if not self.conditions.machine.shared:
            return
        working = sum(pod.engine.step_run is not None for pod in self._alive.values())
        slowness = self.conditions.machine.slowness(working + len(self._transits))
        if slowness == self._slowness:
            return
        for pod in self._alive.values():
            self._apply(pod.engine, partial(pod.engine.slow, slowness, self.now))
        for transit in self._transits.values():
            transit.stretch(slowness / self._slowness, self.now)
            self._schedule(transit.end, self._transit_ended, (transit, transit.version))
        self._slowness = slowness

    def _send(self, request: Request) -> None:
        name = self._gateway.send(request)
        if name is None:
            self._unrouted.append(request)
            return
        request.engine = name
        engine = self._alive[name].engine
        self._apply(engine, partial(engine.add, request, self.now))

    def _apply(self, engine: SimulatedEngine, change: Callable[[], None]) -> None:
        before = engine.version
        change()
        if engine.step_run is not None and engine.version != before:
            self._schedule(engine.step_run.end, self._stepped, (engine, engine.version))

    def _stepped(self, versioned: tuple[SimulatedEngine, int]) -> None:
        engine, version = versioned
        if version != engine.version or engine.name not in self._alive:
            return
        first, ended = engine.advance()
        if engine.step_run is not None:
            self._schedule(engine.step_run.end, self._stepped, (engine, engine.version))
        for request in first:
            self._gateway.answered(request)
            assert request.first_token_at is not None
            engine.totals.first_tokens += 1
            late_after = self.groups[self._alive[engine.name].role].ttft
            engine.totals.first_tokens_late += request.first_token_at - request.arrived_at > late_after
        for request in ended:
            self._end(request, engine)
        self._delete_if_drained(self._alive[engine.name])

    def _end(self, request: Request, engine: SimulatedEngine) -> None:
        self._gateway.ended(request)
        self._open -= 1
        self._failed += not self.slo.attained(request)
        engine.totals.finished += request.outputs > 1
        engine.totals.finished_slow += request.token_seconds > self.slo.tpot

    # --- pods ----------------------------------------------------------------------------------------

    def _create(self, role: Role) -> Pod:
        name = f"engine-{len(self.pods)}"
        cache = cache_of(
            self.profile, self.stream.workload.block, self._longest, prefix_caching=self._caches_prefixes
        )
        pod = Pod(name, self.now, SimulatedEngine(name, self.profile, cache), role)
        pod.engine.slow(self._slowness, self.now)
        self.pods.append(pod)
        self._alive[name] = pod
        for rate, handler in (
            (self.conditions.failures, self._fail),
            (self.conditions.spot, self._spot_notice),
        ):
            if rate > 0:
                self._schedule(self.now + self._rng.expovariate(rate / 3600), handler, pod)
        return pod

    def _start(self, role: Role) -> None:
        spread = self.conditions.cold_start_spread
        seconds = self.conditions.cold_start * self._rng.uniform(1 - spread, 1 + spread)
        self._schedule(self.now + seconds, self._ready, self._create(role))

    def _ready(self, pod: Pod) -> None:
        if pod.phase != "starting":
            return
        pod.phase = "ready"
        self._routable[pod.name] = pod.engine
        self._update_endpoints()
        while self._unrouted:
            self._send(self._unrouted.popleft())

    def _drain(self, pod: Pod) -> None:
        pod.phase = "draining"
        self._routable.pop(pod.name, None)
        self._update_endpoints()
        self._delete_if_drained(pod)

    def _delete_if_drained(self, pod: Pod) -> None:
        if pod.phase == "draining" and not self._is_needed(pod):
            self._delete(pod)

    def _is_needed(self, pod: Pod) -> bool:
        """Return whether a draining pod still has work."""
        return pod.engine.step_run is not None

    def _delete(self, pod: Pod) -> None:
        pod.phase, pod.deleted = "gone", self.now
        del self._alive[pod.name]
        self._routable.pop(pod.name, None)
        self._update_endpoints()

    def _fail(self, pod: Pod) -> None:
        """Kill a pod: requests with a first token are lost, the others are sent to another engine."""
        if pod.phase == "gone":
            return
        replaced = pod.phase != "draining"
        requests = pod.engine.requests()
        for request in requests:
            self._gateway.ended(request)
        self._delete(pod)
        for request in requests:
            request.ids = request.allocation = None
            if request.first_token_at is not None:
                request.lost, self._open = True, self._open - 1
            else:
                request.resumed = 0
                self._send(request)
        if replaced:
            self._start(pod.role)

    def _spot_notice(self, pod: Pod) -> None:
        """Start a replacement for a pod with a spot notice, and drain the pod until its machine ends."""
        if pod.phase in ("draining", "gone"):
            return
        self._start(pod.role)
        self._schedule(self.now + SPOT_NOTICE_SECONDS, self._fail, pod)
        self._drain(pod)

    def _update_endpoints(self) -> None:
        self._gateway.probe(pod for pod in self._alive.values() if pod.phase in ("ready", "draining"))

    def _probe(self, _: None) -> None:
        for pod in self._alive.values():
            if pod.phase != "starting":
                self._gateway.report(pod)
        self._schedule(self.now + PROBE_SECONDS, self._probe, None)

    # --- scaling -------------------------------------------------------------------------------------

    def _scrape(self, group: EngineGroup) -> None:
        self._schedule(self.now + group.scaler.delay, self._decide, (group, self._sample(group)))
        self._schedule(self.now + group.scaler.period, self._scrape, group)

    def _sample(self, group: EngineGroup) -> FleetSample:
        pods = [pod for pod in self._alive.values() if pod.role == group.role]
        ready = [pod for pod in pods if pod.phase == "ready"]
        starting = tuple(pod.name for pod in pods if pod.phase == "starting")
        group.history.supply.append((self.now, len(ready), len(starting)))
        return FleetSample(
            self.now, group.target, tuple(_engine_sample(pod.engine) for pod in ready), starting,
            self._open, len(self._unrouted), self._arrived,
        )  # fmt: skip

    def _decide(self, sampled: tuple[EngineGroup, FleetSample]) -> None:
        if self.now > self.stream.seconds:
            # The last request has arrived, so scaling no longer matters.
            return
        group, sample = sampled
        target = group.decide(sample)
        staying = [
            pod for pod in self._alive.values()
            if pod.role == group.role and pod.phase in ("starting", "ready")
        ]  # fmt: skip
        for _ in range(target - len(staying)):
            self._start(group.role)
        # Starting pods are removed first, the newest before the others, then those with the least work.
        order = sorted(staying, key=lambda pod: (pod.phase == "ready", pod.engine.running, -pod.created))
        for pod in order[: max(0, len(staying) - target)]:
            self._drain(pod)


def _engine_sample(engine: SimulatedEngine) -> EngineSample:
    return EngineSample(
        engine.name, engine.running, len(engine.queue), engine.usage, engine.slots_used, engine.pages_used,
        engine.running_tokens, engine.waiting_tokens, engine.decode_seconds, replace(engine.totals),
        engine.credits,
    )  # fmt: skip
