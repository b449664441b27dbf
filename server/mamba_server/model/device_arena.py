"""The arena's memory on the device: one allocation, and the strided views that the model works on.

The engine process creates one from the layout; nothing else allocates cache memory.
"""

import torch

from mamba_kernels.fp8_pages import Fp8Pages, Pages
from mamba_planner.arithmetic import mixer_inputs, ring_inputs
from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.layout import CacheLayout
from mamba_server.model.replay import ReplayMemory

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class DeviceArena:
    """Zeroed memory of `layout.arena_bytes` on `device`: too large a plan fails here, not under load."""

    def __init__(self, layout: CacheLayout, device: torch.device) -> None:
        self.layout = layout
        self.memory = torch.zeros(layout.arena_bytes, dtype=torch.uint8, device=device)
        # A CPU's kernel only promises zeroed pages; writing them allocates the memory of the plan now.
        self.memory.fill_(0)

    def views(self, model: ModelConfig, state_dtype: str, dtype: torch.dtype) -> CacheViews:
        """Return views of every layer's part of every slot and page.

        Raises UnsupportedModel if the windows behind narrow states would be misaligned.
        """
        layout = self.layout
        conv, ssm = [], []
        for layer in range(layout.recurrent_layers):
            conv.append(self._slots(dtype, layout.conv_offset(layer), *_conv_shape(model)))
            ssm.append(self._slots(DTYPES[state_dtype], layout.ssm_offset(layer), *_ssm_shape(model)))
        kv = [self._pages(dtype, layer, model) for layer in range(layout.attention_layers)]
        tails = self._tails(dtype, model.hidden_size) if layout.tail_bytes else None
        return CacheViews(conv=conv, ssm=ssm, kv=kv, tails=tails)

    def _slots(self, dtype: torch.dtype, offset: int, *shape: int) -> torch.Tensor:
        flat, size = self.memory.view(dtype), dtype.itemsize
        if offset % size:
            # The state has an odd number of 16-bit elements; as_strided would round the offset down, into it.
            raise UnsupportedModel(
                f"the state of a layer has {self.layout.ssm_bytes} bytes, which is not a multiple of the "
                f"size of {dtype}: use --state-dtype float32"
            )
        strides = [self.layout.slab_bytes // size]
        inner = 1
        tail: list[int] = []
        for extent in reversed(shape):
            tail.insert(0, inner)
            inner *= extent
        return torch.as_strided(flat, (self.layout.slabs, *shape), (*strides, *tail), offset // size)

    def _tails(self, dtype: torch.dtype, width: int) -> torch.Tensor:
        layout, size = self.layout, dtype.itemsize
        return torch.as_strided(
            self.memory.view(dtype),
            (layout.slabs * layout.pages_per_slab, width),
            (layout.page_bytes // size, 1),
            layout.attention_layers * layout.page_layer_bytes // size,
        )

    def _pages(self, dtype: torch.dtype, layer: int, model: ModelConfig) -> Pages:
        attention, layout = model.attention, self.layout
        assert attention is not None
        heads, width, first = attention.kv_heads, attention.head_dim, layer * layout.page_layer_bytes
        # Where pages hold one row for key and value, both are the same memory.
        parts = attention.parts
        if not layout.scale_bytes:
            return self._rows(dtype, first, heads, width, parts)
        numbers = self._rows(torch.uint8, first, heads, width, parts)
        behind = first + layout.page_layer_bytes - layout.scale_bytes
        return Fp8Pages(numbers, self._rows(torch.uint8, behind, heads, 1, parts).squeeze(-1))

    def _rows(self, dtype: torch.dtype, offset: int, heads: int, width: int, parts: int) -> torch.Tensor:
        """Return a view of the rows of one layer in each page, [pages, 2, page_size, heads, width].

        The rows begin at `offset` bytes of the page, and have keys and values, or one of `parts` for both.
        """
        layout, size, row = self.layout, dtype.itemsize, heads * width
        return torch.as_strided(
            self.memory.view(dtype),
            (layout.slabs * layout.pages_per_slab, 2, layout.page_size, heads, width),
            (layout.page_bytes // size, layout.page_size * row * (parts - 1), row, width, 1),
            offset // size,
        )


def replay_memory(
    model: ModelConfig, *, lanes: int, most: int, state_dtype: str, dtype: torch.dtype, device: torch.device
) -> ReplayMemory:
    """Allocate the memory of drafts: a ring of `lanes` lanes of `most` inputs for each recurrent layer.

    One copy of a layer's states, in `state_dtype`, serves all layers.
    """
    layers = range(model.recurrent_layers)
    width = mixer_inputs(model)
    return ReplayMemory(
        ring=[torch.zeros(lanes * most, width, dtype=dtype, device=device) for _ in layers],
        conv=torch.zeros(lanes + 1, *_conv_shape(model), dtype=dtype, device=device),
        ssm=torch.zeros(lanes + 1, *_ssm_shape(model), dtype=DTYPES[state_dtype], device=device),
        most=most,
    )


def draft_model_views(
    model: ModelConfig,
    *,
    states: int,
    pages: int,
    page_size: int,
    state_dtype: str,
    dtype: torch.dtype,
    device: torch.device,
) -> CacheViews:
    """Allocate `states` states and `pages` pages of a draft model, in tensors of their own.

    `dtype` is the type of windows and pages.
    """
    recurrent = range(model.recurrent_layers)
    conv = [torch.zeros(states, *_conv_shape(model), dtype=dtype, device=device) for _ in recurrent]
    ssm = [
        torch.zeros(states, *_ssm_shape(model), dtype=DTYPES[state_dtype], device=device) for _ in recurrent
    ]
    kv: list[torch.Tensor] = []
    if (attention := model.attention) is not None:
        shape = pages, attention.parts, page_size, attention.kv_heads, attention.head_dim
        kv = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(model.attention_layers)]
    for view in (*conv, *ssm, *kv):
        # A CPU's kernel only promises zeroed pages; writing them allocates the memory of the plan now.
        view.fill_(0)
    # Where pages hold one row for key and value, both are the same memory.
    return CacheViews(conv=conv, ssm=ssm, kv=[view.expand(-1, 2, -1, -1, -1) for view in kv])


def ring_memory(
    model: ModelConfig, *, lanes: int, tokens: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """Allocate the rings of all recurrent layers, for states that are written once in `tokens` tokens.

    Each of the `lanes` lanes of a ring keeps the inputs of `tokens` - 1 tokens.
    """
    width = ring_inputs(model)
    return [
        torch.zeros(lanes, tokens - 1, width, dtype=dtype, device=device)
        for _ in range(model.recurrent_layers)
    ]


def _conv_shape(model: ModelConfig) -> tuple[int, int]:
    if model.mamba is not None:
        return model.mamba.conv_kernel - 1, model.mamba.conv_dim
    if model.gated_delta is not None:
        return model.gated_delta.conv_kernel - 1, model.gated_delta.conv_dim
    if model.short_conv is not None:
        return model.short_conv.conv_kernel - 1, model.short_conv.channels
    return 0, 0  # attention alone


def _ssm_shape(model: ModelConfig) -> tuple[int, int, int]:
    if model.mamba is not None:
        return model.mamba.heads, model.mamba.head_dim, model.mamba.state_size
    if (delta := model.gated_delta) is not None:
        return delta.value_heads, delta.value_dim, delta.key_dim
    return 0, 0, 0
