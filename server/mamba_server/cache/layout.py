"""Byte layout of the arena: where each layer's part of a state and each attention layer's KV lies.

The planner computes it, the arena counts in it, the model makes strided views from it. Torch-free; all
arithmetic is Python's, so nothing overflows.
"""

from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes; vector loads of every kernel start on such a boundary."""


def align(size: int) -> int:
    """`size` rounded up to `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """One arena of `slabs` slabs; slab 0 is padding. A slab is one slot or `pages_per_slab` pages.

    Within a slot, recurrent layer i has its convolution window at `i * layer_bytes` and its SSM part at
    `i * layer_bytes + conv_bytes`. Within a page, attention layer j has its keys and values at
    `j * page_layer_bytes`.
    """

    recurrent_layers: int
    conv_bytes: int
    """Convolution window of one layer, aligned."""
    ssm_bytes: int
    """SSM part of one layer, aligned."""
    attention_layers: int
    page_layer_bytes: int
    """Keys and values of one page in one attention layer."""
    page_size: int
    slabs: int

    @property
    def layer_bytes(self) -> int:
        return self.conv_bytes + self.ssm_bytes

    @property
    def state_bytes(self) -> int:
        return self.recurrent_layers * self.layer_bytes

    @property
    def page_bytes(self) -> int:
        return self.attention_layers * self.page_layer_bytes

    @property
    def slab_bytes(self) -> int:
        """One state, rounded up to a page multiple."""
        if not self.page_bytes:
            return self.state_bytes
        return max(1, -(-self.state_bytes // self.page_bytes)) * self.page_bytes

    @property
    def pages_per_slab(self) -> int:
        """0 for a pure recurrent model: its pages take no memory and need no slab."""
        return self.slab_bytes // self.page_bytes if self.page_bytes else 0

    @property
    def arena_bytes(self) -> int:
        return self.slabs * self.slab_bytes
