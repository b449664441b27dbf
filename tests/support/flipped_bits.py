"""A bit that flips in the state of a checkpoint, as memory that fails or a wrong copy leaves it."""

from __future__ import annotations

import random

import numpy as np
import torch

from mamba_planner.arithmetic import layer_state
from mamba_server.cache import Lineage
from mamba_server.engine.boot import Engine

HIGHEST_EXPONENT_BIT = 30
"""Bit of a float32 that makes a small number a huge one, or a large one almost zero."""


def flip_state_bit(
    engine: Engine, prompt: list[int], bit: int, rng: random.Random, *, layer: int | None = None
) -> Lineage | None:
    """Flip a bit of one float32 of the state that `prompt` would resume from; return its lineage."""
    match = engine.core.cache.match(np.array(prompt, np.int32), "", engine.core.step_number + 1)
    assert match.node is not None
    size = layer_state(engine.model).ssm
    # A slot begins with the states of its layers.
    layer = rng.randrange(engine.model.recurrent_layers) if layer is None else layer
    place = match.node.slot * engine.state_layout.slab_bytes // 4 + layer * size + rng.randrange(size)
    mask = 1 << bit
    engine.memory.view(torch.int32)[place] ^= mask - (1 << 32) if mask >> 31 else mask
    return match.node.lineage
