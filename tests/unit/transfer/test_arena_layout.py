"""The layout that travels is that of the device's arena: what the model writes is what the buffers hold."""

import numpy as np
import pytest
import torch

from mamba_planner.arithmetic import DTYPE_BYTES, layer_state
from mamba_planner.model_config import ModelConfig
from mamba_server.model.device_arena import DeviceArena
from mamba_server.model.layout import CacheLayout
from mamba_transfer import arena_buffers
from transfer_models import (
    PAGE_SIZE,
    delta_model,
    layout_of,
    mamba_model,
    random_state,
    scatter,
    window_model,
)

SLOT = 2
PAGES = [1, 2, 5]


@pytest.mark.parametrize(
    "model", [mamba_model(2, 2), delta_model(8, 1), window_model(2), mamba_model(1, 1, ("mamba", "mamba"))]
)
def test_what_the_model_writes_into_its_views_is_what_the_buffers_hold(model: ModelConfig) -> None:
    layout = layout_of(model)
    layer = layer_state(model)
    cache = CacheLayout(
        recurrent_layers=model.recurrent_layers,
        ssm_bytes=layer.ssm * DTYPE_BYTES["float32"],
        conv_bytes=layer.conv * DTYPE_BYTES["bfloat16"],
        attention_layers=model.attention_layers,
        page_layer_bytes=layout.page_bytes // max(1, model.attention_layers),
        page_size=PAGE_SIZE,
        slab_bytes=layout.slab_bytes,
        slabs=4,
    )
    arena = DeviceArena(cache, torch.device("cpu"))
    views = arena.views(model, "float32", torch.bfloat16)
    state = random_state(model, len(PAGES), seed=7)

    def bits(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        signed = array.view(f"i{array.itemsize}")
        return torch.from_numpy(signed.copy()).view(like.dtype).reshape(like.shape)

    for number in range(model.recurrent_layers):
        views.ssm[number][SLOT] = bits(state.heads[number], views.ssm[number][SLOT])
        window = np.concatenate([part[number].reshape(part.shape[1], -1) for part in state.windows], axis=1)
        views.conv[number][SLOT] = bits(window, views.conv[number][SLOT])
    for number in range(model.attention_layers):
        for place, page in enumerate(PAGES):
            views.kv[number][page] = bits(state.kv[place, number], views.kv[number][page])
    buffers = arena_buffers(memoryview(arena.memory.numpy()), layout, SLOT, PAGES)
    held, pages = scatter(state, 0, 1)
    assert buffers[0] == held
    assert b"".join(buffers[1:]) == pages
