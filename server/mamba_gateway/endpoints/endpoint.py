"""One engine as routing and admission see it: its snapshot, its queue of prompts, and whether it fails.

The pool keeps a `PromptQueue` and an `OutlierEjection` for each engine, and freezes them with the engine's
report into an `Endpoint`. Everything that a decision would derive from an endpoint again and again is derived
once. Pure.
"""

import functools
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import force_setattr

from mamba_api.choices import Role
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.hand_over import TransferReport

DECODE_SECONDS = 0.001
"""Time that a running sequence adds to each step, assumed where no step was measured."""
ENGINE_QUEUE = 8
"""Requests that may wait at an engine: as many as one of its steps starts at most."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one engine. A new one is made with each request that begins or ends there."""

    url: str
    name: str
    ready: bool
    draining: bool
    models: frozenset[str] | None
    """Names of the models that the engine serves; None = unknown, then it may serve any."""
    running: int
    waiting: int
    kv_usage: float
    in_flight: int
    """Requests of this gateway that the engine has now."""
    in_flight_at_report: int
    """Largest number of the requests in flight that `running` and `waiting` include."""
    speed: EngineSpeed | None = None
    queued_tokens: float | None = None
    """Prompt tokens that the engine has yet to compute, ours as we know them; None = it does not say."""
    room: float | None = None
    """Prompt tokens that the engine has memory for, as last reported; None = it does not say."""
    max_running: int | None = None
    """Largest number of requests that the engine runs at once; None = it does not say."""
    service_seconds: float = 1.0
    """Recent mean time that a request of this gateway takes at the engine."""
    ejected: bool = False
    """Whether the engine is left out, since requests failed there."""
    memory_seconds: float = 0.0
    """Expected wait, in seconds, of a prompt that does not fit the engine's memory now. Derived from the
    other fields."""
    answered: int = 0
    """Attempts of this gateway that the engine answered whole, the mistakes of clients (4xx) aside."""
    failed: int = 0
    """Attempts of this gateway that failed there: 5xx, not reached, broken off, silent."""
    rejected: int = 0
    """Attempts of this gateway that the engine rejected as mistakes of clients: 4xx."""
    full: bool = False
    """Whether the engine has told a request since its last report that it has too many."""
    avoided: bool = False
    """Whether the engine was full lately, so that others are preferred."""
    role: Role = "unified"
    """Work of the engine: whole requests, or prompts alone, or answers to prompts of other engines."""
    transfer: TransferReport | None = None
    """Endpoint of the engine for states that move between engines; None = it moves none."""
    credits: int = 0
    """Number of states that the engine can take, less those that this gateway sent since its report."""
    cost_terms: tuple[float, float, float, float] | None = None
    """(tokens per second, attention ratio, queued prompt tokens, seconds of decoding per prompt), for
    `CostComparison.totals`; None = not all of them are known. Derived from the other fields."""

    def __post_init__(self) -> None:
        running = max(1, self.running)
        # One sequence has to end for each that waits, and they end one after the other.
        force_setattr(self, "memory_seconds", (1 + self.waiting) * self.service_seconds / running)
        speed, queued = self.speed, self.queued_tokens
        if speed is not None and queued is not None:
            decode = self.decode_seconds(speed)
            force_setattr(
                self, "cost_terms", (speed.tokens_per_second, speed.attention_ratio, queued, decode)
            )

    def decode_seconds(self, speed: EngineSpeed) -> float:
        """Return the delay of a prompt by the answers that the engine is writing, at this speed."""
        sequence_seconds = speed.decode_seconds / max(1, self.running) or DECODE_SECONDS
        return sequence_seconds * self.load

    def serves(self, model: str | None) -> bool:
        """Return whether the engine may serve `model`; without a model in the request it has a default."""
        return model is None or self.models is None or model in self.models

    @property
    def address(self) -> str:
        """The host:port of the engine, as proxies write it."""
        return urlsplit(self.url).netloc

    @property
    def key(self) -> int:
        """A number that stands for the engine's name, the same in every gateway."""
        return _key(self.name)

    @property
    def load(self) -> int:
        """Number of requests that the engine has now: ours exactly, those of others as last reported."""
        others = self.running + self.waiting - self.in_flight_at_report
        return others + self.in_flight if others > 0 else self.in_flight


@functools.lru_cache(4096)
def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def engine_capacity(endpoints: Iterable[Endpoint], model: str | None) -> float:
    """Return how many more requests for `model` the engines are given, over all of them.

    An engine's own queue knows nothing of keys: a request that waits there is out of reach of any fairness.
    So an engine is given what it can run and one step's worth more, which begins the moment something ends.
    There is no limit where an engine does not say how many it can run, and where there is no engine at all,
    since a request is then held, or refused, by the relay. Prefill engines do not count: a request keeps the
    place at the engine that will write its answer while its prompt is computed.
    """
    free, any_serves = 0.0, False
    for endpoint in endpoints:
        if endpoint.ready and not endpoint.draining and endpoint.role != "prefill" and endpoint.serves(model):
            free, any_serves = free + _free_places(endpoint), True
    return free if any_serves else math.inf


def _free_places(endpoint: Endpoint) -> float:
    if endpoint.full:
        return 0.0
    most = endpoint.max_running
    if most is None:
        return math.inf
    if _short_of_memory(endpoint):
        most = min(most, endpoint.running)
    return most + ENGINE_QUEUE - endpoint.load


def _short_of_memory(endpoint: Endpoint) -> bool:
    # The requests that wait there do not fit, so no more will run than do.
    room, queued = endpoint.room, endpoint.queued_tokens
    return endpoint.waiting > 0 and room is not None and queued is not None and room < queued


LAG = 1.0
"""Largest age of a report in seconds: an engine counts twice a second, and its answer takes a while."""


class _QueuedPrompt(msgspec.Struct, eq=False):
    tokens: float
    at: float
    reported: bool = False
    """Whether the last report includes the prompt, which was sent long enough before it."""


class PromptQueue:
    """The queued prompts of one engine: its report, corrected by this gateway's requests.

    A report is older than the moment at which it is read: prompts sent within `LAG` before it count in
    addition. Some tokens may then count twice for that long; if they did not count at all, they would attract
    the next request, too. A ticket stands for one request; times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _QueuedPrompt] = {}
        self._reported: float | None = None
        self._answered = 0.0
        """Tokens of reported prompts that were answered since the report."""
        self._unreported = 0.0
        """Tokens of prompts that were sent and not answered, and that no report includes yet."""

    def send(self, ticket: int, tokens: float, now: float) -> None:
        """Record that a request with this number of tokens to compute goes to the engine."""
        self._sent[ticket] = _QueuedPrompt(tokens, now)
        self._unreported += tokens

    def answer(self, ticket: int) -> None:
        """Record that the engine has begun to answer, or never will. Unknown tickets are ignored."""
        sent = self._sent.pop(ticket, None)
        if sent is None:
            return
        if sent.reported:
            self._answered += sent.tokens
        else:
            # Rounding errors of adding and subtracting end with the last prompt.
            self._unreported = self._unreported - sent.tokens if self._sent else 0.0

    def report(self, tokens: float | None, now: float) -> None:
        """Take the number of tokens that the engine reports; None = it reports none."""
        self._reported, self._answered = tokens, 0.0
        for sent in self._sent.values():
            sent.reported = tokens is not None and sent.at < now - LAG
        self._unreported = sum(sent.tokens for sent in self._sent.values() if not sent.reported)

    @property
    def tokens(self) -> float:
        """Estimated number of tokens to be computed now."""
        return max(0.0, self._unreported) + max(0.0, (self._reported or 0.0) - self._answered)


FAILURES = 3
"""Failures in a row after which an engine is left out."""
SUSPICIOUS = 3
"""Rejections in a row after which each further one is compared with another engine's answer."""
COMPARED_SECONDS = 2.0
"""Longest time that an engine gets no request while a rejection is compared. Clients that make mistakes
without end, at another engine that is slow, must not keep the engine out for longer."""
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 300.0
"""Time for which an engine is left out the first time, doubled each time; longest such time."""


@dataclass(slots=True)
class OutlierEjection:
    """The judgement of one engine by the outcome of its requests. Times are monotonic seconds.

    What the engine reports of itself may be wrong. After failures in a row it is left out for a while; then
    one request is sent, and if the engine answers it, the engine is as good as any, else it is left out for
    longer. A request that one engine rejects and another takes counts as a failure of the first, which gets
    no further request until the other has answered.
    """

    failures: int = 0
    """Number of failures since the last answer."""
    ejections: int = 0
    until: float = 0.0
    """Time until which the engine is left out."""
    reason: str = ""
    rejections: int = 0
    """Requests that the engine rejected as mistakes of clients, since the last one that it took."""
    comparisons: int = 0
    """Requests that the engine rejected and that another engine has now."""
    compared_until: float = 0.0
    """Time until which the first comparison keeps other requests away."""
    trial: int | None = None
    """Ticket of the request that shows whether the engine works again."""

    @property
    def doubted(self) -> bool:
        """Whether the engine was left out and has not answered since."""
        return self.ejections > 0

    @property
    def uncertain(self) -> bool:
        """Whether the engine is left out, or may be soon: its state has to be looked at each time."""
        return self.doubted or self.comparisons > 0

    def excludes(self, now: float) -> bool:
        """Return whether the engine gets no request now."""
        if self.comparisons > 0 and now < self.compared_until:
            return True
        return self.doubted and (now < self.until or self.trial is not None)

    def compare(self, now: float) -> None:
        """Record that a request that the engine rejected goes to another engine."""
        if self.comparisons == 0:
            self.compared_until = now + COMPARED_SECONDS
        self.comparisons += 1

    def fail(self, reason: str, now: float, *, may_eject: bool) -> None:
        """Record a failed request; with `may_eject` the engine may be left out from now on."""
        self.failures += 1
        self.reason = reason
        if not may_eject or now < self.until or not (self.doubted or self.failures >= FAILURES):
            return
        self.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self.ejections)
        self.ejections += 1

    def answer(self) -> None:
        """Record that the engine has answered a request."""
        self.failures = self.ejections = self.rejections = 0
        self.until, self.trial = 0.0, None
