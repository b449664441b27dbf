"""What a request would cost at each engine, in expected seconds until its first token. Pure.

One currency for all that speaks for or against an engine: the prompt tokens it has to compute, those before
them, the wait for memory, the answers it is writing. An engine that reports nothing of its own is judged by
the number of its requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from mamba_gateway.endpoints import Endpoint
from mamba_gateway.engine_speed import NOMINAL, EngineSpeed
from mamba_gateway.prompt_prefix import HOME_TOKENS
from mamba_planner.prefill_work import prefill_work
from mamba_prefix.page_chain import mixed

Floats = npt.NDArray[np.float64]

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
_work: Callable[..., Any] = prefill_work
# Of arrays as of numbers.


@dataclass(frozen=True, slots=True)
class Weights:
    """What the two sides count for; 0 = not at all."""

    prefix: float = 1.0
    """Of the time to compute the prompt."""
    load: float = 1.0
    """Of the time until the engine begins with it."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What routing reads of a request."""

    model: str | None
    tried: tuple[str, ...] = ()
    """URLs that failed for this request."""
    prompt_tokens: int = 0
    """Length of its prompt; estimated where nobody tokenized it."""
    resumable: Mapping[str, int] = field(default_factory=dict)
    """By name of the endpoint: tokens of the prompt that need not be computed there."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """The same of those that have its attention or were sent it lately, able to resume it or not."""
    home: int | None = None
    """What prompts with the same beginning have in common; None = not known."""
    sure: bool = True
    """What is known is what engines said of themselves; False: a guess of this gateway's own."""
    among: frozenset[str] | None = None
    """Addresses (host:port, or a host alone) of the only ones that may be chosen; None = all may."""


@dataclass(slots=True)
class Cost:
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


class Costs:
    """Of one request, one for each endpoint in their order. Columns of numbers, of which a `Cost` is made
    when somebody looks at it: a choice among many reads the sums alone."""

    def __init__(self, endpoints: Sequence[Endpoint], columns: Mapping[str, Floats], totals: Floats) -> None:
        self._endpoints, self._columns = endpoints, columns
        self.totals: list[float] = totals.tolist()
        """Seconds, weighted."""
        self._made: dict[int, Cost] = {}

    @property
    def some_apart(self) -> bool:
        """It makes a difference to what is known that not all know the same."""
        return bool(self._columns["apart"].any())

    def __len__(self) -> int:
        return len(self._endpoints)

    def __getitem__(self, at: int) -> Cost:
        if at not in self._made:
            column = {name: values[at].item() for name, values in self._columns.items()}
            for name in ("resumable", "seen"):
                column[name] = int(column[name])
            self._made[at] = Cost(self._endpoints[at], **column)
        return self._made[at]

    def __iter__(self) -> Iterator[Cost]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Costs) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


EVEN = Weights()


def costs(endpoints: Sequence[Endpoint], request: RoutingRequest, weights: Weights, rng: Random) -> Costs:
    """What it would cost at each endpoint; at least one."""
    numbers = np.array([endpoint.numbers for endpoint in endpoints]).T
    tps, ratio, decode_seconds, queued, room, in_flight, load, running, waiting, service = numbers
    unmeasured = np.isnan(tps)
    if unmeasured.any():
        usual = _usual_speed(endpoints)
        tps[unmeasured], ratio[unmeasured] = usual.tokens_per_second, usual.attention_ratio
        decode_seconds[unmeasured] = usual.decode_seconds
    tokens = request.prompt_tokens
    # The last token is always computed: it gives the first of the answer.
    names = [endpoint.name for endpoint in endpoints]
    known = _tokens(names, request.resumable, max(0, tokens - 1))
    # A state is kept where prompts part once a second one has shown that they do: at the engine that has
    # what the first one left, so that counts as much as one that is there already.
    seen = np.maximum(known, _tokens(names, request.seen, tokens))
    compute = weights.prefix * _work(known, tokens, ratio) / tps

    jitter = 1 + JITTER * np.array([rng.random() for _ in endpoints])
    says = ~np.isnan(queued)
    queue = np.where(
        says, jitter * queued / tps, SECONDS_PER_REQUEST * (in_flight + jitter * (load - in_flight))
    )
    many = np.maximum(1, running)
    each = decode_seconds / many
    decode = np.where(says, np.where(each > 0, each, DECODE_SECONDS) * load, 0.0)
    # One sequence has to end for each that waits, and they end one after the other.
    memory = np.where(tokens + queued > room, (1 + waiting) * service / many, 0.0)
    columns = {
        "resumable": known,
        "seen": seen,
        "compute": compute,
        "queue": weights.load * queue,
        "memory": weights.load * memory,
        "decode": weights.load * decode,
        "apart": weights.prefix * _apart(endpoints, request, seen, ratio) / tps,
    }
    return Costs(endpoints, columns, sum(list(columns.values())[2:], np.zeros(len(endpoints))))


def _tokens(names: Sequence[str], depths: Mapping[str, int], most: int) -> Floats:
    if not depths:
        return np.zeros(len(names))
    return np.minimum(np.array([depths.get(name, 0) for name in names], np.float64), most)


def _apart(endpoints: Sequence[Endpoint], request: RoutingRequest, seen: Floats, ratio: Floats) -> Floats:
    """Work that would be done twice, as it counts."""
    # Gateways that go by guesses of their own guess differently: nothing stays together for all of them.
    most, times = float(seen.max()), TIMES_APART if request.sure else 1.0
    if most < HOME_TOKENS and request.home is not None:
        # Nobody has shown yet that anything will be shared.
        most, times = float(max(HOME_TOKENS, int(ASSUMED_SHARE * request.prompt_tokens))), 1.0
        seen = seen.copy()
        seen[_home(endpoints, request.home)] = most
    apart: Floats = np.where(seen < most, times * _work(seen, most, ratio), 0.0)
    return apart


def home_of(endpoints: Sequence[Endpoint], key: int) -> Endpoint:
    """Where prompts of this beginning go while no engine has it: the same for all who see these endpoints,
    and for most keys the same when one of the endpoints leaves (rendezvous hashing)."""
    return endpoints[_home(endpoints, key)]


def _home(endpoints: Sequence[Endpoint], key: int) -> int:
    # Each bit of the value moves half of the result's.
    return int(mixed(np.array([endpoint.key ^ key for endpoint in endpoints], np.uint64)).argmax())


def _usual_speed(endpoints: Sequence[Endpoint]) -> EngineSpeed:
    """The median of those that measured themselves, for those that did not yet."""
    known = sorted((e.speed for e in endpoints if e.speed is not None), key=lambda s: s.tokens_per_second)
    return known[len(known) // 2] if known else NOMINAL
