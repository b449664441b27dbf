"""One engine as routing and admission see it: a snapshot, its queued prompts, its failed requests.

The pool keeps a `PromptQueue` and an `OutlierEjection` for each engine, and combines them with the engine's
report into an immutable `Endpoint`. Values that every decision needs are computed once, when the `Endpoint`
is created. Pure.
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
"""Seconds that a running sequence is assumed to add to each step, if no step was measured."""
ENGINE_QUEUE = 8
"""Number of requests that may wait at an engine: the largest number that one step starts."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """Holds what routing knows of one engine at a moment; it does not change.

    A new one is created for each request that begins or ends there.
    """

    url: str
    name: str
    ready: bool
    draining: bool
    models: frozenset[str] | None
    """Names of the models that the engine serves; None = unknown, and any request may be sent there."""
    running: int
    """Number of sequences that the engine runs, as last reported."""
    waiting: int
    """Number of requests that wait at the engine, as last reported."""
    kv_usage: float
    """Used share of the engine's cache memory, 0 to 1, as last reported."""
    in_flight: int
    """Number of requests of this gateway at the engine now."""
    in_flight_at_report: int
    """Largest number of this gateway's requests that may be included in `running` and `waiting`."""
    speed: EngineSpeed | None = None
    queued_tokens: float | None = None
    """Estimated number of prompt tokens that the engine has yet to compute; None = the engine reports
    none."""
    room: float | None = None
    """Number of prompt tokens that fit into the engine's memory, as last reported; None = not reported."""
    max_running: int | None = None
    """Maximum number of requests that the engine runs at once; None = not reported."""
    service_seconds: float = 1.0
    """Average duration in seconds of this gateway's recent requests at the engine."""
    ejected: bool = False
    """Whether the engine gets no requests, because requests have failed there."""
    memory_seconds: float = 0.0
    """Expected seconds until a prompt that does not fit into the engine's memory now would fit. Derived from
    the other fields."""
    answered: int = 0
    """Number of this gateway's requests that the engine answered completely. Answers of status 4xx do not
    count."""
    failed: int = 0
    """Number of this gateway's requests that failed there: status 5xx, no connection, an answer that broke
    off, or no answer."""
    rejected: int = 0
    """Number of this gateway's requests that the engine rejected with a status 4xx, as mistakes of
    clients."""
    full: bool = False
    """Whether the engine has rejected a request since its last report because it had too many."""
    avoided: bool = False
    """Whether the engine was full recently, so that other engines are preferred."""
    candidate: bool = False
    """Whether the engine has the new revision of a canary, which only some conversations get."""
    role: Role = "unified"
    """Work of the engine: whole requests (unified), only prompts (prefill), or only answers to prompts that
    another engine computed (decode)."""
    transfer: TransferReport | None = None
    """Server from which other engines can fetch states of this engine; None = there is none."""
    credits: int = 0
    """Number of further states that the engine can receive, after those that this gateway has sent since its
    report."""
    cost_terms: tuple[float, float, float, float] | None = None
    """(tokens per second, attention ratio, queued prompt tokens, seconds of decoding per prompt), for
    `CostComparison.totals`; None = not all of them are known. Derived from the other fields."""

    def __post_init__(self) -> None:
        running = max(1, self.running)
        # For each sequence that waits, another one has to end first, and they end one after the other.
        force_setattr(self, "memory_seconds", (1 + self.waiting) * self.service_seconds / running)
        speed, queued = self.speed, self.queued_tokens
        if speed is not None and queued is not None:
            decode = self.decode_seconds(speed)
            force_setattr(
                self, "cost_terms", (speed.tokens_per_second, speed.attention_ratio, queued, decode)
            )

    def decode_seconds(self, speed: EngineSpeed) -> float:
        """Return the seconds by which the answers being written delay a prompt, at this speed."""
        sequence_seconds = speed.decode_seconds / max(1, self.running) or DECODE_SECONDS
        return sequence_seconds * self.load

    def serves(self, model: str | None) -> bool:
        """Return whether the engine may serve `model`; None = the request names no model."""
        return model is None or self.models is None or model in self.models

    @property
    def address(self) -> str:
        """The host:port of the engine, in the form that proxies use."""
        return urlsplit(self.url).netloc

    @property
    def key(self) -> int:
        """Number derived from the engine's name, which is the same in every gateway."""
        return _key(self.name)

    @property
    def load(self) -> int:
        """Number of requests at the engine: this gateway's exactly, others' as last reported."""
        others = self.running + self.waiting - self.in_flight_at_report
        return others + self.in_flight if others > 0 else self.in_flight


@functools.lru_cache(4096)
def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def engine_capacity(endpoints: Iterable[Endpoint], model: str | None) -> float:
    """Return how many more requests for `model` may be sent to the engines, in total.

    The queue of an engine does not distinguish keys, so the gateway cannot order the requests in it fairly.
    An engine therefore gets only as many requests as it can run, and the number that one of its steps can
    start. The capacity is unlimited if an engine does not report how many it can run, and if there is no
    engine, since the relay then holds or refuses the request. Prefill engines do not count: while they
    compute a prompt, the request occupies room at the decode engine that will answer it.
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
    # The waiting requests do not fit into memory, so no more than the present number will run.
    room, queued = endpoint.room, endpoint.queued_tokens
    return endpoint.waiting > 0 and room is not None and queued is not None and room < queued


LAG = 1.0
"""Maximum age of a report in seconds. An engine updates its numbers twice a second, and the answer takes some
time."""


class _QueuedPrompt(msgspec.Struct, eq=False):
    tokens: float
    at: float
    reported: bool = False
    """Whether the last report includes the prompt, because it was sent long enough before."""


class PromptQueue:
    """Estimate of the prompt tokens queued at one engine: its report, corrected by this gateway's requests.

    A report describes an earlier moment than the moment at which it is read. So prompts that were sent within
    `LAG` seconds before the reading count in addition. Some tokens may be counted twice for that time;
    without it they might not count at all, and the engine would attract the next request. A ticket identifies
    a request. Times are monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _QueuedPrompt] = {}
        self._reported: float | None = None
        self._answered = 0.0
        """Tokens of reported prompts whose answers have begun since the report."""
        self._unreported = 0.0
        """Tokens of prompts that were sent, whose answers have not begun, and that no report includes."""

    def send(self, ticket: int, tokens: float, now: float) -> None:
        """Record that the request `ticket` was sent at `now`, for which the engine computes `tokens`."""
        self._sent[ticket] = _QueuedPrompt(tokens, now)
        self._unreported += tokens

    def answer(self, ticket: int) -> None:
        """Record that the answer has begun, or that there will be none. Unknown tickets are ignored."""
        sent = self._sent.pop(ticket, None)
        if sent is None:
            return
        if sent.reported:
            self._answered += sent.tokens
        else:
            # Rounding errors are removed once no prompt is queued.
            self._unreported = self._unreported - sent.tokens if self._sent else 0.0

    def report(self, tokens: float | None, now: float) -> None:
        """Record at `now` seconds the queued tokens that the engine reports; None if it reports none."""
        self._reported, self._answered = tokens, 0.0
        for sent in self._sent.values():
            sent.reported = tokens is not None and sent.at < now - LAG
        self._unreported = sum(sent.tokens for sent in self._sent.values() if not sent.reported)

    @property
    def tokens(self) -> float:
        """Estimated number of tokens to be computed now."""
        return max(0.0, self._unreported) + max(0.0, (self._reported or 0.0) - self._answered)


FAILURES = 3
"""Number of consecutive failures after which an engine gets no requests for a while."""
SUSPICIOUS = 3
"""Number of consecutive rejections after which every further one is compared with another engine's answer."""
COMPARED_SECONDS = 2.0
"""Longest time, in seconds, that an engine gets no request while a rejection is compared. Otherwise clients
whose requests are wrong could keep an engine idle while a slow one answers."""
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 300.0
"""Seconds for which an engine is ejected the first time, doubled each time; and the longest such time."""


@dataclass(slots=True)
class OutlierEjection:
    """Decides from the results of its requests whether one engine gets further requests. Times are monotonic.

    What an engine reports about itself may be wrong. After several consecutive failures it is ejected: it
    gets no requests for a while. Then it gets one request as a trial. If the engine answers that, it is used
    as before; otherwise it is ejected for longer. If one engine rejects a request that another engine
    accepts, that counts as a failure of the first, which gets no other request until the second has answered.
    """

    failures: int = 0
    """Number of failures since the last successful answer."""
    ejections: int = 0
    """Number of ejections since the last successful answer."""
    until: float = 0.0
    """Time, in monotonic seconds, until which the engine is ejected."""
    reason: str = ""
    """Cause of the last failure."""
    rejections: int = 0
    """Number of requests that the engine rejected with a status 4xx since it last accepted one."""
    comparisons: int = 0
    """Number of requests that the engine rejected and that are now at another engine."""
    compared_until: float = 0.0
    """Time, in monotonic seconds, until which a comparison keeps other requests away."""
    trial: int | None = None
    """Ticket of the trial request, which shows whether the engine works again; None = there is none."""

    @property
    def doubted(self) -> bool:
        """Whether the engine was ejected and has not answered successfully since."""
        return self.ejections > 0

    @property
    def uncertain(self) -> bool:
        """Whether the engine is ejected or may soon be, so that its state has to be checked each time."""
        return self.doubted or self.comparisons > 0

    def excludes(self, now: float) -> bool:
        """Return whether the engine must not get a request at `now` seconds."""
        if self.comparisons > 0 and now < self.compared_until:
            return True
        return self.doubted and (now < self.until or self.trial is not None)

    def compare(self, now: float) -> None:
        """Record that a request that the engine rejected is sent to another engine at `now` seconds."""
        if self.comparisons == 0:
            self.compared_until = now + COMPARED_SECONDS
        self.comparisons += 1

    def fail(self, reason: str, now: float, *, may_eject: bool) -> None:
        """Record a request that failed at `now` seconds. With `may_eject` the engine may be ejected."""
        self.failures += 1
        self.reason = reason
        if not may_eject or now < self.until or not (self.doubted or self.failures >= FAILURES):
            return
        self.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self.ejections)
        self.ejections += 1

    def answer(self) -> None:
        """Record that the engine has answered a request successfully."""
        self.failures = self.ejections = self.rejections = 0
        self.until, self.trial = 0.0, None
