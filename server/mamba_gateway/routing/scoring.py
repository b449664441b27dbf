"""Cost of a request at each engine: expected seconds until its first token. Pure.

A cost adds up the time to compute the prompt tokens that cannot be resumed, the queued prompts before it, the
wait for memory, and the slowdown by sequences that decode. An engine that reports no queue is estimated by
its number of requests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec
import numpy as np

from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.engine_speed import NOMINAL, EngineSpeed
from mamba_gateway.prompt_prefix import HOME_TOKENS
from mamba_prefix.page_chain import mixed, mixed_one

SECONDS_PER_REQUEST = 1.0
"""Estimate for each request at an engine that does not report its queued prompt tokens."""
ASSUMED_SHARE = 0.5
"""Share of a prompt unknown to all engines that later prompts are assumed to share with it."""
RECOMPUTE_FACTOR = 4.0
"""Cost of computing again the tokens that another engine has cached, as a multiple of the time it takes: it
also delays queued requests, its copy evicts cache entries, and later prompts that share the prefix are split
between engines."""
RECOMPUTE_FACTOR_PER_WAITING = 2.0
"""Added to `RECOMPUTE_FACTOR` for each request that waits at the engine: the work delays all requests that
arrive until the queue is empty, which at half utilization takes twice as long as the queue itself."""
JITTER = 0.1
"""Load caused by other gateways is known from the last report only: it is scaled by a random factor from 1 to
1 + JITTER for each engine, so that several gateways do not all pick the same one."""
Stage = Literal["request", "prompt", "answer"]
"""Purpose of a choice of an engine: a whole request; the prompt alone; the answer to a computed prompt."""
SMALL_POOL = 8
"""Number of endpoints up to which Python integers are faster than arrays."""


@dataclass(frozen=True, slots=True)
class RoutingWeights:
    """Weights of the two parts of a cost; 0 = ignored."""

    prefix: float = 1.0
    """Weight of the time to compute the prompt."""
    load: float = 1.0
    """Weight of the time until the engine begins with the prompt."""


class RoutingRequest(msgspec.Struct, frozen=True):
    """The fields of a request that routing reads."""

    model: str | None
    tried: tuple[str, ...] = ()
    """URLs that failed for this request."""
    prompt_tokens: int = 0
    """Length of its prompt; estimated where nobody tokenized it."""
    resumable: Mapping[str, int] = msgspec.field(default_factory=dict)
    """By name of the endpoint: tokens of the prompt that need not be computed there."""
    seen: Mapping[str, int] = msgspec.field(default_factory=dict)
    """By name of the endpoint: tokens whose attention pages it has, or that it was sent lately, whether or
    not it could resume them."""
    home: int | None = None
    """Hash of the beginning of the prompt, by which prompts unknown to all get a home engine; None = not
    known."""
    authoritative: bool = True
    """`resumable` and `seen` come from a prefix index that follows the engines; False = they are this
    gateway's own guess."""
    allowed_addresses: frozenset[str] | None = None
    """Addresses (host:port, or a host alone) that may be chosen, as the proxy restricts them; None = all."""
    stage: Stage = "request"
    candidate: bool | None = None
    """Whether the candidates of a canary answer this conversation; None = there is no canary."""
    other_weights: frozenset[str] = frozenset()
    """Names of the endpoints whose states the other engine of a hand-over cannot use, as far as is known."""


class Cost(msgspec.Struct):
    """The cost of one request at one endpoint: weighted seconds, by cause."""

    endpoint: Endpoint
    resumable: int
    seen: int
    """Tokens of the prompt that the endpoint knows, resumable or not."""
    compute: float
    """Time to compute the tokens that cannot be resumed."""
    queue: float
    """Time to compute the prompts before this one."""
    memory: float
    """Time until there is memory for the prompt."""
    decode: float
    """Delay by the answers that are being written."""
    apart: float = 0.0
    """Penalty for computing again the tokens that another engine has cached, or, for a prompt that no engine
    has cached, the tokens that later prompts may share with it at their home engine."""

    @property
    def total(self) -> float:
        return self.compute + self.queue + self.memory + self.decode + self.apart


EVEN = RoutingWeights()
NOTHING_KNOWN = (0, 0)
_EXACT = (1.0,)


CostParts = tuple[float, float, float, float, float]
"""Weighted seconds of one cost: (compute, queue, memory, decode, apart)."""


class CostComparison(msgspec.Struct):
    """One request and its candidate endpoints.

    A decision needs only the total cost of each, which `totals` computes fast; `costs` breaks the totals down
    by cause.
    """

    endpoints: Sequence[Endpoint]
    request: RoutingRequest
    weights: RoutingWeights
    jitters: Sequence[float]
    """float per endpoint: factor for the load caused by other gateways."""
    median_speed: EngineSpeed
    tokens_known: Mapping[str, tuple[int, int]]
    """By name of each endpoint that has a part of the prompt: (tokens it can resume, tokens it has seen)."""
    most_seen: int
    """Largest number of tokens of the prompt seen by one endpoint, or assumed to be shared by later
    prompts."""
    recompute_factor: float
    """Cost of computing the tokens of `most_seen` again at an engine without a queue, as a multiple of the
    time it takes."""
    recompute_factor_per_waiting: float
    """Added to `recompute_factor` for each request that waits at the engine."""
    home: str
    """Name of the home engine, which is not charged for the assumed sharing; "" = none."""

    @classmethod
    def of(
        cls, endpoints: Sequence[Endpoint], request: RoutingRequest, weights: RoutingWeights, rng: Random
    ) -> "CostComparison":
        """Return the comparison of one endpoint or more for `request`; `rng` draws the jitter of each."""
        tokens_known = _tokens_known(endpoints, request)
        if len(endpoints) == 1:
            # With only one endpoint, neither another cache nor a difference in load can change the choice.
            speed = endpoints[0].speed or NOMINAL
            return cls(endpoints, request, weights, _EXACT, speed, tokens_known, 0, 1.0, 0.0, "")
        draw = rng.random
        jitters = [1 + JITTER * draw() for _ in endpoints]
        most, home = max([seen for _, seen in tokens_known.values()], default=0), ""
        # Gateways without an index guess differently, so they would not keep shared prefixes at one engine.
        factor, per_waiting = (
            (RECOMPUTE_FACTOR, RECOMPUTE_FACTOR_PER_WAITING) if request.authoritative else (1.0, 0.0)
        )
        if most < HOME_TOKENS and request.home is not None:
            home = home_of(endpoints, request.home).name
            # No request has shown yet that later ones will share the prompt: its computation costs no more.
            most, factor, per_waiting = max(HOME_TOKENS, int(ASSUMED_SHARE * request.prompt_tokens)), 1.0, 0.0
        median = _median_speed(endpoints)
        return cls(
            endpoints, request, weights, jitters, median, tokens_known, most, factor, per_waiting, home
        )

    def costs(self) -> tuple[Cost, ...]:
        """Return the cost at each endpoint, in their order."""
        return tuple([self.cost(index) for index in range(len(self.endpoints))])

    def cost(self, index: int) -> Cost:
        """Return the cost at the endpoint with this index."""
        endpoint = self.endpoints[index]
        resumable, seen = self.tokens_known.get(endpoint.name, NOTHING_KNOWN)
        return Cost(endpoint, resumable, seen, *self._parts((index,))[0])

    def totals(self) -> list[float]:
        """Return the total cost at each endpoint in seconds, float[endpoints]: `cost(i).total`, faster."""
        rows = self._parts(range(len(self.endpoints)))
        return [compute + queue + memory + decode + apart for compute, queue, memory, decode, apart in rows]

    def _parts(self, indices: Iterable[int]) -> list[CostParts]:
        """Return the parts of the cost at each of these endpoints: the one formula of a cost.

        Every request waits for it, so the loop calls nothing for an endpoint that reports all it needs.
        """
        tokens, tokens_known = self.request.prompt_tokens, self.tokens_known
        most_seen, home = self.most_seen, self.home
        prefix, load, jitters, endpoints = (
            self.weights.prefix,
            self.weights.load,
            self.jitters,
            self.endpoints,
        )
        factor, factor_per_waiting = self.recompute_factor, self.recompute_factor_per_waiting
        square, most_square = tokens * tokens, most_seen * most_seen
        rows: list[CostParts] = []
        for index in indices:
            endpoint = endpoints[index]
            rate, ratio, queued, decode = endpoint.cost_terms or self._assumed_terms(endpoint)
            resumable, seen = tokens_known.get(endpoint.name, NOTHING_KNOWN)
            compute = prefix * ((tokens - resumable + ratio * (square - resumable * resumable) / 2) / rate)
            memory = apart = 0.0
            if queued is None:
                others = endpoint.load - endpoint.in_flight
                queue = load * (SECONDS_PER_REQUEST * (endpoint.in_flight + jitters[index] * others))
            else:
                queue = load * (jitters[index] * queued / rate)
                room = endpoint.room
                if room is not None and tokens + queued > room:
                    memory = load * endpoint.memory_seconds
            if seen < most_seen and endpoint.name != home:
                charge = (factor + factor_per_waiting * endpoint.waiting) * prefix
                apart = charge * ((most_seen - seen + ratio * (most_square - seen * seen) / 2) / rate)
            rows.append((compute, queue, memory, load * decode, apart))
        return rows

    def _assumed_terms(self, endpoint: Endpoint) -> tuple[float, float, float | None, float]:
        """Return speed, attention ratio, queue and decode seconds of an endpoint that does not report all.

        Speed is in tokens a second, and the queue in tokens, None if it is unknown. What is missing is
        assumed.
        """
        speed, queued = endpoint.speed or self.median_speed, endpoint.queued_tokens
        decode = 0.0 if queued is None else endpoint.decode_seconds(speed)
        return speed.tokens_per_second, speed.attention_ratio, queued, decode

    def cheapest_first(self) -> list[Endpoint]:
        """Return the endpoints in the order of their totals."""
        totals = self.totals()
        return [self.endpoints[index] for index in sorted(range(len(totals)), key=totals.__getitem__)]

    def cost_behind(self, address: str | None) -> Cost | None:
        """Return the cost at the endpoint with this address; None = it was no candidate."""
        indices = (index for index, endpoint in enumerate(self.endpoints) if endpoint.address == address)
        return next(map(self.cost, indices), None)

    @property
    def charges(self) -> bool:
        """Whether some endpoint is charged for computing tokens that another one has cached."""
        if self.weights.prefix <= 0:
            return False
        return any(self._charged(endpoint.name) for endpoint in self.endpoints)

    def _charged(self, name: str) -> bool:
        return name != self.home and self.tokens_known.get(name, NOTHING_KNOWN)[1] < self.most_seen


def _tokens_known(endpoints: Sequence[Endpoint], request: RoutingRequest) -> dict[str, tuple[int, int]]:
    resumable, seen, tokens = request.resumable, request.seen, request.prompt_tokens
    if not resumable and not seen:
        return {}
    pairs: dict[str, tuple[int, int]] = {}
    for endpoint in endpoints:
        name = endpoint.name
        if name in seen or name in resumable:
            # The last token is always computed: it gives the first of the answer.
            resumed = max(0, min(resumable.get(name, 0), tokens - 1))
            # An engine keeps a state where prompts diverge once a second prompt has shown that they do. The
            # pages of the first prompt therefore count as much as a state.
            pairs[name] = resumed, max(resumed, min(seen.get(name, 0), tokens))
    return pairs


def home_of(endpoints: Sequence[Endpoint], key: int) -> Endpoint:
    """Return the home engine of prompts with the beginning `key`, by rendezvous hashing.

    It is the same in every gateway with these endpoints, and stays for most keys when an endpoint leaves.
    """
    # The keys of many endpoints are mixed at once, which for few takes longer.
    keys = [key ^ endpoint.key for endpoint in endpoints]
    many = len(keys) > SMALL_POOL
    values = mixed(np.array(keys, np.uint64)).tolist() if many else list(map(mixed_one, keys))
    best = max(values)
    tied = (endpoint for endpoint, value in zip(endpoints, values, strict=True) if value == best)
    return max(tied, key=_name)


def _name(endpoint: Endpoint) -> str:
    return endpoint.name


def _median_speed(endpoints: Sequence[Endpoint]) -> EngineSpeed:
    """Return the median of the measured speeds, for endpoints that have measured none yet."""
    speeds = [endpoint.speed for endpoint in endpoints if endpoint.speed is not None]
    if not speeds or len(speeds) == len(endpoints):
        return NOMINAL  # without measured speeds, or if every endpoint has one
    speeds.sort(key=lambda speed: speed.tokens_per_second)
    return speeds[len(speeds) // 2]
