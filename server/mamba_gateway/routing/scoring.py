"""Cost of a request at each engine: expected seconds until its first token. Pure.

A cost adds up the time to compute the prompt tokens that cannot be resumed, the queued prompts before it, the
wait for memory, and the slowdown by sequences that decode. An engine that reports no queue is estimated by
its number of requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

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
"""Cost of computing again what another engine has, as a multiple of the time it takes: it also delays queued
requests, its copy evicts cache entries, and later prompts that share the prefix are split between engines."""
RECOMPUTE_FACTOR_PER_WAITING = 2.0
"""Added to that factor for each request that waits at the engine: the work delays all requests that arrive
until the queue is empty, which at half utilization takes twice as long as the queue itself."""
JITTER = 0.1
"""Load caused by other gateways is known from the last report only: it is scaled by a random factor from 1 to
1 + JITTER for each engine, so that several gateways do not all pick the same one."""
SMALL_POOL = 8
"""Number of endpoints up to which Python integers are faster than arrays."""


@dataclass(frozen=True, slots=True)
class RoutingWeights:
    """Weights of the two parts of a cost; 0 = ignored."""

    prefix: float = 1.0
    """Of the time to compute the prompt."""
    load: float = 1.0
    """Of the time until the engine begins with it."""


class RoutingRequest(msgspec.Struct, frozen=True):
    """What routing reads of a request."""

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


class Cost(msgspec.Struct):
    """Of one request at one endpoint: seconds, weighted, by what they come from."""

    endpoint: Endpoint
    resumable: int
    seen: int
    """Tokens of the prompt that it knows, resumable or not."""
    compute: float
    """To compute what cannot be resumed."""
    queue: float
    """To compute the prompts before it."""
    memory: float
    """Until there is memory for it."""
    decode: float
    """For the answers that are being written."""
    apart: float = 0.0
    """Penalty for computing again what another engine has, or, for a prompt that no engine has, what later
    prompts may share with it at their home engine."""

    @property
    def total(self) -> float:
        return self.compute + self.queue + self.memory + self.decode + self.apart


EVEN = RoutingWeights()
NOTHING_KNOWN = (0, 0)
_EXACT = (1.0,)


class CostComparison(msgspec.Struct):
    """One request and its candidate endpoints. A decision needs only the total of each, which `totals`
    computes fast; `costs` breaks the totals down by cause."""

    endpoints: Sequence[Endpoint]
    request: RoutingRequest
    weights: RoutingWeights
    jitters: Sequence[float]
    """float per endpoint: factor for the load caused by other gateways."""
    median_speed: EngineSpeed
    known: Mapping[str, tuple[int, int]]
    """By name of each endpoint that has a part of the prompt: (tokens it can resume, tokens it has seen)."""
    most_seen: int
    """Largest number of tokens of the prompt seen by one endpoint, or assumed to be shared by later
    prompts."""
    recompute_factor: float
    """Cost of computing those again at an engine without a queue, as a multiple of the time it takes."""
    recompute_factor_per_waiting: float
    """Added to that factor for each request that waits at the engine."""
    home: str
    """Name of the home engine, which is not charged for the assumed sharing; "" = none."""

    @classmethod
    def of(
        cls, endpoints: Sequence[Endpoint], request: RoutingRequest, weights: RoutingWeights, rng: Random
    ) -> "CostComparison":
        """Of at least one endpoint."""
        if len(endpoints) == 1:
            # Compared with nothing: nobody else has what it lacks, and no load is to be told apart.
            speed = endpoints[0].speed or NOMINAL
            known = _known(endpoints, request)
            return cls(endpoints, request, weights, _EXACT, speed, known, 0, 1.0, 0.0, "")
        draw, known = rng.random, _known(endpoints, request)
        jitters = [1 + JITTER * draw() for _ in endpoints]
        most, home = max([seen for _, seen in known.values()], default=0), ""
        # Gateways that go by guesses of their own guess differently: nothing stays together for all of them.
        times, each = (
            (RECOMPUTE_FACTOR, RECOMPUTE_FACTOR_PER_WAITING) if request.authoritative else (1.0, 0.0)
        )
        if most < HOME_TOKENS and request.home is not None:
            home = home_of(endpoints, request.home).name
            # Nobody has shown yet that anything will be shared.
            most, times, each = max(HOME_TOKENS, int(ASSUMED_SHARE * request.prompt_tokens)), 1.0, 0.0
        usual = _usual_speed(endpoints)
        return cls(endpoints, request, weights, jitters, usual, known, most, times, each, home)

    def costs(self) -> tuple[Cost, ...]:
        """One for each endpoint, in their order."""
        return tuple([self.cost(at) for at in range(len(self.endpoints))])

    def cost(self, index: int) -> Cost:
        """Of the endpoint at this place."""
        endpoint, request, weights, jitter = (
            self.endpoints[index],
            self.request,
            self.weights,
            self.jitters[index],
        )
        speed = endpoint.speed or self.median_speed
        known, seen = self.known.get(endpoint.name, NOTHING_KNOWN)
        apart = 0.0
        if seen < self.most_seen and endpoint.name != self.home:
            times = self.recompute_factor + self.recompute_factor_per_waiting * endpoint.waiting
            apart = times * weights.prefix * speed.seconds(seen, self.most_seen)
        compute = weights.prefix * speed.seconds(known, request.prompt_tokens)
        if endpoint.queued_tokens is None:
            others = endpoint.load - endpoint.in_flight
            queue = SECONDS_PER_REQUEST * (endpoint.in_flight + jitter * others)
            return Cost(endpoint, known, seen, compute, weights.load * queue, 0.0, 0.0, apart)
        queue = jitter * endpoint.queued_tokens / speed.tokens_per_second
        decode = endpoint.decode_seconds(speed)
        memory = 0.0
        if endpoint.room is not None and request.prompt_tokens + endpoint.queued_tokens > endpoint.room:
            memory = endpoint.memory_seconds
        load = weights.load
        return Cost(endpoint, known, seen, compute, load * queue, load * memory, load * decode, apart)

    def totals(self) -> list[float]:
        """The total cost of each endpoint in seconds, float[endpoints]; bit for bit `cost(i).total`, but much
        faster, since every request waits for it."""
        tokens, most, home, known = self.request.prompt_tokens, self.most_seen, self.home, self.known
        prefix, load = self.weights.prefix, self.weights.load
        times, each, square, most_square = (
            self.recompute_factor,
            self.recompute_factor_per_waiting,
            tokens * tokens,
            most * most,
        )
        found: list[float] = []
        for at, endpoint in enumerate(self.endpoints):
            if (terms := endpoint.cost_terms) is None:
                found.append(self.cost(at).total)
                continue
            rate, ratio, queued, decode = terms
            name, room = endpoint.name, endpoint.room
            resumed, seen = known.get(name, NOTHING_KNOWN)
            total = prefix * ((tokens - resumed + ratio * (square - resumed * resumed) / 2) / rate)
            total += load * (self.jitters[at] * queued / rate)
            if room is not None and tokens + queued > room:
                total += load * endpoint.memory_seconds
            total += load * decode
            if seen < most and name != home:
                charge = (times + each * endpoint.waiting) * prefix
                total += charge * ((most - seen + ratio * (most_square - seen * seen) / 2) / rate)
            found.append(total)
        return found

    def cheapest_first(self) -> list[Endpoint]:
        """The endpoints in the order of their totals."""
        totals = self.totals()
        return [self.endpoints[at] for at in sorted(range(len(totals)), key=totals.__getitem__)]

    def cost_behind(self, address: str | None) -> Cost | None:
        """The cost at the endpoint with this address; None = it was no candidate."""
        found = (at for at, endpoint in enumerate(self.endpoints) if endpoint.address == address)
        return next(map(self.cost, found), None)

    @property
    def charges(self) -> bool:
        """Whether some endpoint is charged for recomputing what another one has."""
        if self.weights.prefix <= 0:
            return False
        return any(self._charged(endpoint.name) for endpoint in self.endpoints)

    def _charged(self, name: str) -> bool:
        return name != self.home and self.known.get(name, NOTHING_KNOWN)[1] < self.most_seen


def _known(endpoints: Sequence[Endpoint], request: RoutingRequest) -> dict[str, tuple[int, int]]:
    resumable, has, tokens = request.resumable, request.seen, request.prompt_tokens
    if not resumable and not has:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for endpoint in endpoints:
        name = endpoint.name
        if name in has or name in resumable:
            # The last token is always computed: it gives the first of the answer.
            known = max(0, min(resumable.get(name, 0), tokens - 1))
            # A state is kept where prompts part once a second one has shown that they do: at the engine that
            # has what the first one left, so that counts as much as one that is there already.
            found[name] = known, max(known, min(has.get(name, 0), tokens))
    return found


def home_of(endpoints: Sequence[Endpoint], key: int) -> Endpoint:
    """Home engine of prompts with the beginning `key`, by rendezvous hashing: the same in every gateway with
    these endpoints, and unchanged for most keys when an endpoint leaves."""
    # Of many they are mixed at once, which for few takes longer.
    keys = [key ^ endpoint.key for endpoint in endpoints]
    many = len(keys) > SMALL_POOL
    values = mixed(np.array(keys, np.uint64)).tolist() if many else list(map(mixed_one, keys))
    best = max(values)
    return max((one for one, value in zip(endpoints, values, strict=True) if value == best), key=_name)


def _name(endpoint: Endpoint) -> str:
    return endpoint.name


def _usual_speed(endpoints: Sequence[Endpoint]) -> EngineSpeed:
    """Median of the measured speeds, used for endpoints that have measured none yet."""
    known = [endpoint.speed for endpoint in endpoints if endpoint.speed is not None]
    if not known or len(known) == len(endpoints):
        return NOMINAL  # or nobody needs it
    known.sort(key=lambda speed: speed.tokens_per_second)
    return known[len(known) // 2]
