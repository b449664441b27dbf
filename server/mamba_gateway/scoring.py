"""What a request would cost at each engine, in expected seconds until its first token. Pure.

One currency for all that speaks for or against an engine: the prompt tokens it has to compute, those before
them, the wait for memory, the answers it is writing. An engine that reports nothing of its own is judged by
the number of its requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from mamba_gateway.endpoints import Endpoint
from mamba_gateway.engine_speed import NOMINAL, EngineSpeed
from mamba_gateway.prompt_prefix import HOME_TOKENS

SECONDS_PER_REQUEST = 1.0
"""What a request counts for at an engine that does not say how many tokens it has to compute."""
DECODE_SECONDS = 0.001
"""Of a running sequence in each step, where no step was measured."""
ASSUMED_SHARE = 0.5
"""Of a prompt that no engine knows, what others are assumed to share with it."""
TIMES_APART = 4.0
"""What work that is done twice costs, by the time it takes: it delays those behind it, its copy pushes out of
memory what others would have resumed, and prompts that share it part ways from then on."""
JITTER = 0.1
"""The part of the load that others make is old news: gateways read it higher by up to so much, each by a
number of its own for each engine, so that they do not all send to the same one."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Weights:
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
    sure: bool = True
    """What is known is what engines said of themselves; False: a guess of this gateway's own."""
    among: frozenset[str] | None = None
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
    """For computing again what another engine knows, `TIMES_APART` the time that takes; or what others may
    share with this prompt who go to the home of its beginning."""

    @property
    def total(self) -> float:
        return self.compute + self.queue + self.memory + self.decode + self.apart


EVEN = Weights()


def costs(
    endpoints: Sequence[Endpoint], request: RoutingRequest, weights: Weights, rng: Random
) -> tuple[Cost, ...]:
    """One for each endpoint, in their order."""
    usual = _usual_speed(endpoints)
    # Of many engines each is looked at with each request: what costs little here costs a lot in all.
    made = tuple([_cost(each, request, weights, usual, 1 + JITTER * rng.random()) for each in endpoints])
    _charge_apart(made, request, weights, usual)
    return made


def _charge_apart(
    made: Sequence[Cost], request: RoutingRequest, weights: Weights, usual: EngineSpeed
) -> None:
    known = {cost.endpoint.name: cost.seen for cost in made}
    # Gateways that go by guesses of their own guess differently: nothing stays together for all of them.
    most, times = max(known.values()), TIMES_APART if request.sure else 1.0
    if most < HOME_TOKENS and request.home is not None:
        home = home_of([cost.endpoint for cost in made], request.home)
        # Nobody has shown yet that anything will be shared.
        most, times = max(HOME_TOKENS, int(ASSUMED_SHARE * request.prompt_tokens)), 1.0
        known[home.name] = most
    for cost in made:
        if (start := known[cost.endpoint.name]) < most:
            again = (cost.endpoint.speed or usual).seconds(start, most)
            cost.apart = times * weights.prefix * again


def home_of(endpoints: Sequence[Endpoint], key: int) -> Endpoint:
    """Where prompts of this beginning go while no engine has it: the same for all who see these endpoints,
    and for most keys the same when one of the endpoints leaves (rendezvous hashing)."""
    return max(endpoints, key=lambda endpoint: (_mixed(key ^ endpoint.key), endpoint.name))


def _mixed(value: int) -> int:
    # splitmix64's finaliser: each bit of the value moves half of the result's.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _usual_speed(endpoints: Sequence[Endpoint]) -> EngineSpeed:
    """The median of those that measured themselves, for those that did not yet."""
    known = [endpoint.speed for endpoint in endpoints if endpoint.speed is not None]
    if not known or len(known) == len(endpoints):
        return NOMINAL  # or nobody needs it
    known.sort(key=lambda speed: speed.tokens_per_second)
    return known[len(known) // 2]


def _cost(
    endpoint: Endpoint, request: RoutingRequest, weights: Weights, usual: EngineSpeed, jitter: float
) -> Cost:
    speed = endpoint.speed or usual
    # The last token is always computed: it gives the first of the answer.
    known = seen = 0
    if (resumable := request.resumable.get(endpoint.name)) is not None:
        known = seen = max(0, min(resumable, request.prompt_tokens - 1))
    # A state is kept where prompts part once a second one has shown that they do: at the engine that has
    # what the first one left, so that counts as much as one that is there already.
    if (has := request.seen.get(endpoint.name)) is not None:
        seen = max(known, min(has, request.prompt_tokens))
    compute = weights.prefix * speed.seconds(known, request.prompt_tokens)
    if endpoint.queued_tokens is None:
        others = endpoint.load - endpoint.in_flight
        queue = SECONDS_PER_REQUEST * (endpoint.in_flight + jitter * others)
        return Cost(endpoint, known, seen, compute, weights.load * queue, 0.0, 0.0)
    queue = jitter * endpoint.queued_tokens / speed.tokens_per_second
    running = max(1, endpoint.running)
    each = speed.decode_seconds / running or DECODE_SECONDS
    decode = each * endpoint.load
    memory = 0.0
    if endpoint.room is not None and request.prompt_tokens + endpoint.queued_tokens > endpoint.room:
        # One sequence has to end for each that waits, and they end one after the other.
        memory = (1 + endpoint.waiting) * endpoint.service_seconds / running
    return Cost(
        endpoint, known, seen, compute, weights.load * queue, weights.load * memory, weights.load * decode
    )
