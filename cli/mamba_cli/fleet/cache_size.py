"""The memory of a simulated engine's cache, in states and in tokens of attention KV beside them."""

from dataclasses import dataclass

from mamba_server.cache.arena import Arena

CAP = 4
"""Checkpoints of a path at most, unless an engine is told otherwise."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The arena: `slots` states and, beside them in the same arena, `kv_tokens` tokens of attention KV.

    `tokens_per_state`: how many tokens' KV takes the bytes of one state; 0 = a model without attention, so
    that slots alone bind.
    """

    slots: int
    kv_tokens: int = 0
    tokens_per_state: int = 0

    def arena(self, page_size: int, kind: type[Arena] = Arena) -> Arena:
        """Slab 0 is padding."""
        per_slab = self.tokens_per_state // page_size
        slabs = self.slots + (-(-self.kv_tokens // (per_slab * page_size)) if per_slab else 0)
        return kind(slabs + 1, per_slab)
