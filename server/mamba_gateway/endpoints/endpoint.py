"""One engine as routing and admission see it, frozen, and how many more requests the engines are given. Pure.

Everything that a decision would derive from an endpoint again and again is derived once.
"""

import functools
import hashlib
import math
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import force_setattr

from mamba_gateway.endpoints.engine_speed import EngineSpeed

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
    since a request is then held, or refused, by the relay.
    """
    free, any_serves = 0.0, False
    for endpoint in endpoints:
        if endpoint.ready and not endpoint.draining and endpoint.serves(model):
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
