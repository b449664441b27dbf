"""One engine as routing sees it, frozen: what a decision would work out from it again and again is worked out
once.
"""

import functools
import hashlib
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import force_setattr

from mamba_gateway.endpoints.engine_speed import EngineSpeed

DECODE_SECONDS = 0.001
"""Of a running sequence in each step, where no step was measured."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """Snapshot of one engine, as routing sees it; made anew with each request that it gets or ends."""

    url: str
    name: str
    ready: bool
    draining: bool
    models: frozenset[str] | None
    """Names it serves; None = unknown, then it may serve any."""
    running: int
    waiting: int
    kv_usage: float
    in_flight: int
    """Requests of this gateway that it has now."""
    in_flight_at_report: int
    """So many of them at most are in `running` and `waiting`."""
    speed: EngineSpeed | None = None
    queued_tokens: float | None = None
    """Prompt tokens it has yet to compute, ours as we know them; None = it does not say."""
    room: float | None = None
    """Prompt tokens that it has memory for, as last reported; None = it does not say."""
    max_running: int | None = None
    """Requests that it runs at once at most; None = it does not say."""
    service_seconds: float = 1.0
    """How long a request of ours stays with it, lately."""
    ejected: bool = False
    """It is left out, since requests failed there."""
    memory_seconds: float = 0.0
    """Expected wait, in seconds, of a prompt that does not fit its memory now. Derived from the other
    fields."""
    answered: int = 0
    """Attempts of this gateway that it answered whole, the mistakes of clients (4xx) aside."""
    failed: int = 0
    """Attempts of this gateway that failed there: 5xx, not reached, broken off, silent."""
    rejected: int = 0
    """Attempts of this gateway that it rejected as mistakes of clients: 4xx."""
    full: bool = False
    """It has told a request since its last report that it has too many."""
    avoided: bool = False
    """It has told so lately: others are asked first."""
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
        """What the answers that it is writing cost a prompt at this speed."""
        each = speed.decode_seconds / max(1, self.running) or DECODE_SECONDS
        return each * self.load

    @property
    def address(self) -> str:
        """Its host:port, as proxies write it."""
        return urlsplit(self.url).netloc

    @property
    def key(self) -> int:
        """A number that stands for its name, the same in every gateway."""
        return _key(self.name)

    @property
    def load(self) -> int:
        """Requests it has now: ours exactly, those of others as last reported."""
        others = self.running + self.waiting - self.in_flight_at_report
        return others + self.in_flight if others > 0 else self.in_flight


@functools.lru_cache(4096)
def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())
