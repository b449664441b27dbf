"""What a gateway that has just begun waits for until it is ready: knowing what its engines can resume."""

from mamba_gateway.clock import Clock
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_prefix.prefix_index import PrefixIndex

WARM_UP_SECONDS = 5.0
"""Longest time; with Redis or a tokenizer away it is better to choose without than not at all."""


class WarmUp:
    """Of one gateway. It serves what comes meanwhile; but whoever can send elsewhere should."""

    def __init__(self, pool: Pool, index: PrefixIndex, texts: TextProcessors | None, clock: Clock) -> None:
        self._pool, self._index, self._texts, self._clock = pool, index, texts, clock
        self._until = clock() + WARM_UP_SECONDS
        self._over = texts is None

    def missing(self) -> str:
        """What it does not know yet; "" = all, or it has waited long enough."""
        if self._over:
            return ""
        if any(endpoint.ready for endpoint in self._pool.snapshot()) and self._clock() < self._until:
            if self._texts is not None and not self._texts.all_queried:
                return "the engines' tokenizers have not been read yet"
            if self._index.state == "unavailable":
                return "the prefix index has not been read yet"
        self._over = True
        return ""
