"""What a request would cost at each engine, in expected seconds until its first token. Pure.

One currency for all that speaks for or against an engine: the prompt tokens it has to compute, those before
them, the wait for memory, the answers it is writing. An engine that reports nothing of its own is judged by
the number of its requests.
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
"""What a request counts for at an engine that does not say how many tokens it has to compute."""
ASSUMED_SHARE = 0.5
"""Of a prompt that no engine knows, what others are assumed to share with it."""
RECOMPUTE_FACTOR = 4.0
"""What work that is done twice costs, by the time it takes: it delays those behind it, its copy pushes out of
memory what others would have resumed, and prompts that share it part ways from then on."""
RECOMPUTE_FACTOR_PER_WAITING = 2.0
"""So much more for each request that waits at the engine that would do it: it delays all that come until the
queue there is empty again. That takes longer than the queue is, since others come meanwhile: twice as long at
half use."""
JITTER = 0.1
"""The part of the load that others make is old news: gateways read it higher by up to so much, each by a
number of its own for each engine, so that they do not all send to the same one."""
SMALL_POOL = 8
"""Endpoints, up to which numbers by themselves are quicker than arrays."""


@dataclass(frozen=True, slots=True)
class RoutingWeights:
    """What the two sides count for; 0 = not at all."""

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
    """The same of those that have its attention or were sent it lately, able to resume it or not."""
    home: int | None = None
    """What prompts with the same beginning have in common; None = not known."""
    authoritative: bool = True
    """What is known is what engines said of themselves; False: a guess of this gateway's own."""
    allowed_addresses: frozenset[str] | None = None
    """Addresses (host:port, or a host alone) of the only ones that may be chosen; None = all may."""


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
    """For computing again what another engine knows, several times the time that takes; or what others may
    share with this prompt who go to the home of its beginning."""

    @property
    def total(self) -> float:
        return self.compute + self.queue + self.memory + self.decode + self.apart


EVEN = RoutingWeights()
NOTHING_KNOWN = (0, 0)
_EXACT = (1.0,)


class CostComparison(msgspec.Struct):
    """One request and the endpoints it may go to. What a choice needs is one number of each, and most of them
    are asked for nothing else: `totals` makes the numbers alone, `costs` what they are made of."""

    endpoints: Sequence[Endpoint]
    request: RoutingRequest
    weights: RoutingWeights
    jitters: Sequence[float]
    """What the load that others make is multiplied with, of each endpoint."""
    median_speed: EngineSpeed
    known: Mapping[str, tuple[int, int]]
    """By name, of those that know something of the prompt: tokens that they can resume, and have seen."""
    most_seen: int
    """Tokens of the prompt that one of them has seen, or that others are assumed to share with it."""
    recompute_factor: float
    """What it costs to compute those once more, by the time it takes, at an engine where none waits."""
    recompute_factor_per_waiting: float
    """So much more for each request that waits there."""
    home: str
    """Name of the one that is not charged for what it is only assumed that others share; "" = none is."""

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
        """The total of each cost, to the last bit, in a fraction of the time: this is what a decision waits
        for."""
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
        """Of the endpoint with this address; None: it was not weighed."""
        found = (at for at, endpoint in enumerate(self.endpoints) if endpoint.address == address)
        return next(map(self.cost, found), None)

    @property
    def charges(self) -> bool:
        """Some endpoint is charged for work that would be done twice."""
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
    """Where prompts of this beginning go while no engine has it: the same for all who see these endpoints,
    and for most keys the same when one of the endpoints leaves (rendezvous hashing)."""
    # Of many they are mixed at once, which for few takes longer.
    keys = [key ^ endpoint.key for endpoint in endpoints]
    many = len(keys) > SMALL_POOL
    values = mixed(np.array(keys, np.uint64)).tolist() if many else list(map(mixed_one, keys))
    best = max(values)
    return max((one for one, value in zip(endpoints, values, strict=True) if value == best), key=_name)


def _name(endpoint: Endpoint) -> str:
    return endpoint.name


def _usual_speed(endpoints: Sequence[Endpoint]) -> EngineSpeed:
    """The median of those that measured themselves, for those that did not yet."""
    known = [endpoint.speed for endpoint in endpoints if endpoint.speed is not None]
    if not known or len(known) == len(endpoints):
        return NOMINAL  # or nobody needs it
    known.sort(key=lambda speed: speed.tokens_per_second)
    return known[len(known) // 2]
