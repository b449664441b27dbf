"""Memory of a simulated engine's cache, in recurrent states and tokens of attention KV."""

from dataclasses import dataclass

from mamba_server.cache.arena import Arena

CAP = 4
"""Default maximum of checkpoints on a path."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of an arena that holds `slots` states and `kv_tokens` tokens of attention KV.

    `tokens_per_state` is the number of tokens whose KV takes the bytes of one state. It is 0 for a model
    without attention, whose memory is limited by slots only.
    """

    slots: int
    kv_tokens: int = 0
    tokens_per_state: int = 0

    def arena(self, page_size: int, kind: type[Arena] = Arena) -> Arena:
        """Return an arena of this size, whose slab 0 is padding."""
        per_slab = self.tokens_per_state // page_size
        slabs = self.slots + (-(-self.kv_tokens // (per_slab * page_size)) if per_slab else 0)
        return kind(slabs + 1, per_slab)
