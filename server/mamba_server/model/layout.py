"""Byte layout of the arena: offsets of each layer's part of a state and of each attention layer's KV.

The memory plan determines it; `DeviceArena` turns it into strided views. Torch-free; all arithmetic is
Python's, so nothing overflows.
"""

from dataclasses import dataclass

from mamba_api.choices import FP8_PAGES
from mamba_planner.arithmetic import DTYPE_BYTES, PAGE_SCALE_BYTES, layer_state, page_tail_bytes
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Layout of an arena of `slabs` slabs; slab 0 is padding. A slab is one slot or `pages_per_slab` pages.

    Within a slot all SSM parts come first, layer by layer, then all convolution windows, so that wide loads
    of the SSM part stay aligned whatever the window's size. Within a page, attention layer j has its keys and
    values at `j * page_layer_bytes`, and behind these their scales if pages are FP8; the layer of a head for
    drafts is the last one.
    """

    recurrent_layers: int
    ssm_bytes: int
    """Size of the SSM part of one layer."""
    conv_bytes: int
    """Size of the convolution window of one layer."""
    attention_layers: int
    page_layer_bytes: int
    """Size of the keys and values of one page in one attention layer."""
    page_size: int
    slab_bytes: int
    slabs: int
    scale_bytes: int = 0
    """Size of the scales of one page in one attention layer, part of `page_layer_bytes`; 0 = pages are not
    FP8."""
    tail_bytes: int = 0
    """Size of the hidden state of a page's last token, which a page has behind keys and values for a head."""

    @classmethod
    def of(cls, model: ModelConfig, plan: MemoryPlan, dtype: str) -> "CacheLayout":
        """Return the layout that `plan` assumes. `dtype`: type of activations, windows and KV.

        If the plan has pages of FP8, keys and values have that type.
        """
        layer, tail, scales = layer_state(model), page_tail_bytes(model, dtype), 0
        if plan.kv_cache_dtype == FP8_PAGES and (attention := model.attention) is not None:
            scales = attention.parts * plan.page_size * attention.kv_heads * PAGE_SCALE_BYTES
        return cls(
            recurrent_layers=model.recurrent_layers,
            ssm_bytes=layer.ssm * DTYPE_BYTES[plan.state_dtype],
            conv_bytes=layer.conv * DTYPE_BYTES[dtype],
            attention_layers=model.kv_layers,
            page_layer_bytes=(plan.page_bytes - tail) // max(1, model.kv_layers),
            page_size=plan.page_size,
            slab_bytes=plan.slab_bytes,
            slabs=plan.slabs,
            scale_bytes=scales,
            tail_bytes=tail,
        )

    def ssm_offset(self, layer: int) -> int:
        """Return the offset of recurrent layer `layer`'s SSM part within a slot."""
        return layer * self.ssm_bytes

    def conv_offset(self, layer: int) -> int:
        """Return the offset of recurrent layer `layer`'s convolution window within a slot."""
        return self.recurrent_layers * self.ssm_bytes + layer * self.conv_bytes

    @property
    def page_bytes(self) -> int:
        return self.attention_layers * self.page_layer_bytes + self.tail_bytes

    @property
    def pages_per_slab(self) -> int:
        """Number of pages in a slab; 0 for a pure recurrent model, whose pages take no memory."""
        return self.slab_bytes // self.page_bytes if self.page_bytes else 0

    @property
    def arena_bytes(self) -> int:
        return self.slabs * self.slab_bytes
