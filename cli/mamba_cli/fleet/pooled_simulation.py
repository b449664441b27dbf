"""`PooledSimulation`: the simulation of a fleet of two pools, with the hand-over of states between them.

A prompt is computed by a prefill engine, waits there as an export, travels over the links of both engines,
and is installed in the cache of the decode engine, which resumes from it. The caches are the product's, so
exports and receptions take the slots and pages that they take there. If the decode engine has no memory for a
state, it computes the prompt itself.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mamba_api.choices import Role
from mamba_cli.fleet.engine import MOST_RECEPTIONS, SimulatedEngine
from mamba_cli.fleet.engine_group import EngineGroup, Scaler
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.pod import Pod
from mamba_cli.fleet.pooled_gateway import PooledGateway, PromptLeg
from mamba_cli.fleet.prompt_blocks import Tokens
from mamba_cli.fleet.request import Request
from mamba_cli.fleet.sample import FleetSample
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream
from mamba_server.cache import Export, Reception

HAND_OVER_TOKENS = 512
"""The planner's default of disaggregation.handOverTokens."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Speed of the network link of each engine, in each direction at the same time."""

    bytes_per_second: float = 10e9
    """Bytes of states a second over a link of 100 Gbit/s, without headers."""
    latency: float = 0.001
    """Seconds of a transfer without any bytes."""


class Network:
    """The network between engines: computes when the states that they send arrive.

    Each engine's link carries one state at a time in each direction.
    """

    def __init__(self, speed: LinkSpeed, profile: EngineProfile) -> None:
        self._speed, self._profile = speed, profile
        self._outgoing: dict[str, float] = {}
        self._incoming: dict[str, float] = {}

    def size(self, tokens: int) -> float:
        """Return the bytes of a state with the pages of `tokens` tokens."""
        profile = self._profile
        pages = tokens / profile.tokens_per_state if profile.tokens_per_state else 0.0
        return profile.state_bytes * (1.0 + pages)

    def send(self, source: str, reader: str, tokens: int, now: float) -> float:
        """Send one state at `now`, in seconds; return the second at which it has arrived.

        The links of `source` and `reader` are busy until then. `tokens` is the number of tokens whose pages
        are sent.
        """
        begin = max(now, self._outgoing.get(source, 0.0), self._incoming.get(reader, 0.0))
        end = begin + self._speed.latency + self.size(tokens) / self._speed.bytes_per_second
        self._outgoing[source] = self._incoming[reader] = end
        return end


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Plan of one pool: its autoscaler, the bounds of its number of engines, and its latency target."""

    scaler: Scaler
    conditions: FleetEnvironment
    ttft: float
    """Seconds after which the state of a prompt, or a first token, is late."""


@dataclass(slots=True, eq=False)
class _Handed:
    """A state that waits at a prefill engine for its reader, or travels."""

    leg: PromptLeg
    source: Pod
    export: Export
    reader: str = ""
    reception: Reception | None = None


class PooledSimulation(Simulation):
    """Simulates a fleet of prefill engines and decode engines.

    Call `run` once, then read `requests`, `pods` and `groups`.
    """

    _gateway: PooledGateway

    def __init__(
        self,
        stream: RequestStream,
        profile: EngineProfile,
        pools: Mapping[Role, PoolPlan],
        slo: Slo,
        link: LinkSpeed,
        *,
        hand_over_tokens: int = HAND_OVER_TOKENS,
        seed: int = 0,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._plans, self._hand_over_tokens = pools, hand_over_tokens
        decode = pools["decode"]
        if any(plan.conditions.failures or plan.conditions.spot for plan in pools.values()):
            raise ValueError(
                "deaths of engines are not simulated with two pools: leave failures and spot out"
            )
        super().__init__(
            stream, profile, PooledGateway, decode.scaler, slo, decode.conditions, seed, progress
        )  # fmt: skip
        self._network = Network(link, profile)
        self._legs: dict[Request, PromptLeg] = {}
        """Request at a prefill engine, by the prompt that the engine computes."""
        self._waiting: dict[str, deque[_Handed]] = {}
        """States that wait for room in a decode engine, by the engine's name."""
        self._under_way: dict[str, int] = {}
        """Number of states that an engine exports or receives, by the engine's name."""
        self.handed_over = self.recomputed = 0
        if not stream.identity:
            # Prompts of which nobody knows what they share are all different.
            self._give_own_tokens()

    def _groups(self, scaler: Scaler) -> dict[Role, EngineGroup]:
        del scaler
        return {
            role: EngineGroup(role, plan.scaler, plan.conditions, plan.ttft)
            for role, plan in self._plans.items()
        }

    @property
    def _caches_prefixes(self) -> bool:
        return True

    def _give_own_tokens(self) -> None:
        first = 0
        for request in self.requests:
            request.prompt = partial(_own_tokens, first, request.prompt_tokens)
            first += request.prompt_tokens
        if first > np.iinfo(np.int32).max:
            raise ValueError("the trace has more prompt tokens than can be told apart: shorten it")

    # --- requests ------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        page = self.pods[0].engine.cache.page_size
        leg = self._gateway.choose(request, page, self._hand_over_tokens)
        if leg is None:
            super()._send(request)
            return
        self._legs[leg.prompt] = leg
        engine = self._alive[leg.prompt.engine].engine
        self._apply(engine, partial(engine.add, leg.prompt, self.now))

    def _end(self, request: Request, engine: SimulatedEngine) -> None:
        leg = self._legs.pop(request, None)
        if leg is None:
            super()._end(request, engine)
        else:
            self._gateway.ended(request)
            leg.request.computed += request.computed
            self._hand_over(leg, self._alive[engine.name])
        self._serve_waiting(engine)

    def _hand_over(self, leg: PromptLeg, source: Pod) -> None:
        """Send the state of a computed prompt to the decode engine that the gateway chooses."""
        reader, export = self._gateway.hand_over(leg), leg.prompt.export
        if reader is None or export is None or export.depth != leg.depth:
            if export is not None:
                source.engine.cache.end_export(export)
            if reader is None:
                self._unrouted.append(leg.request)
            else:
                leg.request.engine = reader
                self._compute(leg.request, reader)
            return
        leg.request.engine = reader
        for name in (source.name, reader):
            self._under_way[name] = self._under_way.get(name, 0) + 1
        self._waiting.setdefault(reader, deque()).append(_Handed(leg, source, export, reader))
        self._serve_waiting(self._alive[reader].engine)

    def _serve_waiting(self, engine: SimulatedEngine) -> None:
        """Begin to send waiting states to a decode engine, up to `MOST_RECEPTIONS` at once.

        The engine computes the prompts of states for which it has no memory.
        """
        waiting = self._waiting.get(engine.name)
        while waiting and engine.cache.capacity.receiving < MOST_RECEPTIONS:
            handed = waiting.popleft()
            leg = handed.leg
            handed.reception = engine.cache.receive(leg.prompt.prompt(), "")
            if handed.reception is None:
                self._finish(handed)
                self._compute(leg.request, engine.name)
                continue
            tokens = leg.depth - handed.reception.base
            arrival = self._network.send(handed.source.name, engine.name, tokens, self.now)
            self._schedule(arrival, self._arrived_state, handed)

    def _arrived_state(self, handed: _Handed) -> None:
        engine, reception = self._alive[handed.reader].engine, handed.reception
        assert reception is not None
        engine.install(reception)
        self._finish(handed)
        self.handed_over += 1
        self._apply(engine, partial(engine.add, handed.leg.request, self.now))
        self._serve_waiting(engine)

    def _compute(self, request: Request, reader: str) -> None:
        """Let the decode engine `reader` compute the whole prompt."""
        self.recomputed += 1
        engine = self._alive[reader].engine
        self._apply(engine, partial(engine.add, request, self.now))

    def _finish(self, handed: _Handed) -> None:
        """End the export of a state that has arrived, or for which the decode engine has no memory.

        A draining source without further work is deleted.
        """
        handed.source.engine.cache.end_export(handed.export)
        for name in (handed.source.name, handed.reader):
            self._under_way[name] -= 1
        self._delete_if_drained(handed.source)

    # --- pods and scaling ----------------------------------------------------------------------------

    def _is_needed(self, pod: Pod) -> bool:
        return super()._is_needed(pod) or self._under_way.get(pod.name, 0) > 0

    def _sample(self, group: EngineGroup) -> FleetSample:
        sample = super()._sample(group)
        if group.role == "decode":
            return sample
        readers = [pod for pod in self._alive.values() if pod.role == "decode" and pod.phase == "ready"]
        return replace(sample, readers_full=bool(readers) and not any(pod.engine.credits for pod in readers))


def _own_tokens(first: int, count: int) -> Tokens:
    return np.arange(first, first + count, dtype=np.int32)
