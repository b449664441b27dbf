"""Small models of each kind whose states travel in tests, and an independent reference of their layout.

`scatter` cuts the tensors of a whole model into the arenas of tensor-parallel ranks, `gather` puts them back.
Both use the indices of numpy alone, so that they share nothing with the code that they check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mamba_planner.model_config import (
    AttentionConfig,
    GatedDeltaConfig,
    MambaConfig,
    ModelConfig,
    ShortConvConfig,
)
from mamba_transfer import StateLayout

Tensor = NDArray[np.generic]
PAGE_SIZE = 4
KINDS = {"float32": np.dtype("u4"), "bfloat16": np.dtype("u2"), "float64": np.dtype("u8")}
"""Unsigned integers stand for the numbers: their bits are random."""


def mamba_model(
    groups: int, kv_heads: int, layers: tuple[str, ...] = ("mamba", "attention") * 2
) -> ModelConfig:
    """Return a Mamba2 hybrid with 16 heads."""
    mamba = MambaConfig(
        heads=16, head_dim=2, state_size=3, groups=groups, conv_kernel=4, chunk_size=8, conv_bias=True,
        proj_bias=False, dt_limit=(0.0, 1.0), norm_eps=1e-5,
    )  # fmt: skip
    return _model(layers, kv_heads, mamba=mamba)


def delta_model(key_heads: int, kv_heads: int) -> ModelConfig:
    """Return a gated delta hybrid with 16 value heads."""
    delta = GatedDeltaConfig(
        value_heads=16, key_heads=key_heads, value_dim=2, key_dim=3, conv_kernel=4, norm_eps=1e-5
    )
    return _model(("gated_delta", "gated_delta", "attention"), kv_heads, gated_delta=delta)


def window_model(kv_heads: int) -> ModelConfig:
    """Return a hybrid of gated short convolutions with 16 channels, which have no state but the window."""
    short_conv = ShortConvConfig(channels=16, conv_kernel=5, bias=False)
    return _model(("short_conv", "short_conv", "attention"), kv_heads, short_conv=short_conv)


def _model(
    layers: tuple[str, ...],
    kv_heads: int,
    mamba: MambaConfig | None = None,
    gated_delta: GatedDeltaConfig | None = None,
    short_conv: ShortConvConfig | None = None,
) -> ModelConfig:
    attention = AttentionConfig(heads=16, kv_heads=kv_heads, head_dim=2, bias=False, scale=1.0)
    return ModelConfig(
        family="nemotron_h", architecture="Small", hidden_size=8, vocab_size=16,
        layers=layers,  # type: ignore[arg-type]
        mamba=mamba, gated_delta=gated_delta, short_conv=short_conv,
        attention=attention if "attention" in layers else None, mlp=None, norm_eps=1e-5,
        tie_embeddings=False, residual_in_fp32=False, max_position=1024, dtype="bfloat16",
        bos_token_id=None, eos_token_ids=(0,), parameters=1,
    )  # fmt: skip


def layout_of(model: ModelConfig, rank: int = 0, ranks: int = 1, **other: str) -> StateLayout:
    """Return the layout of one rank, with float32 states and bfloat16 for all else."""
    fields = {"fingerprint": "weights", "state_dtype": "float32", "dtype": "bfloat16", **other}
    return StateLayout.of(model, page_size=PAGE_SIZE, rank=rank, ranks=ranks, **fields)


@dataclass(frozen=True)
class WholeState:
    """One state and its pages as tensors of the whole model."""

    heads: Tensor
    """[layers, heads, elements]."""
    windows: list[Tensor]
    """Each [layers, K-1, units, elements]: x, B, C, or q, k, v."""
    kv: Tensor
    """[pages, layers, 2, page size, heads, width]."""


def random_state(model: ModelConfig, pages: int, seed: int) -> WholeState:
    """Return a state of random bits."""
    random = np.random.default_rng(seed)

    def bits(dtype: str, *shape: int) -> Tensor:
        kind = KINDS[dtype]
        return random.integers(0, 1 << (8 * kind.itemsize), shape, dtype=kind)

    layers = model.recurrent_layers
    if (mamba := model.mamba) is not None:
        heads = bits("float32", layers, mamba.heads, mamba.head_dim * mamba.state_size)
        rows = mamba.conv_kernel - 1
        shapes = [(mamba.heads, mamba.head_dim)] + 2 * [(mamba.groups, mamba.state_size)]
    elif (short := model.short_conv) is not None:
        heads = bits("float32", layers, short.channels, 0)
        rows, shapes = short.conv_kernel - 1, [(short.channels, 1)]
    else:
        delta = model.gated_delta
        assert delta is not None
        heads = bits("float32", layers, delta.value_heads, delta.value_dim * delta.key_dim)
        rows = delta.conv_kernel - 1
        shapes = 2 * [(delta.key_heads, delta.key_dim)] + [(delta.value_heads, delta.value_dim)]
    windows = [bits("bfloat16", layers, rows, *shape) for shape in shapes]
    attention = model.attention
    width = (attention.kv_heads, attention.head_dim) if attention else (0, 0)
    return WholeState(heads, windows, bits("bfloat16", pages, model.attention_layers, 2, PAGE_SIZE, *width))


def share(tensor: Tensor, axis: int, rank: int, ranks: int) -> Tensor:
    """Return the units of one rank along `axis`: a slice, or a replica of the one unit that the rank uses."""
    units = tensor.shape[axis]
    if units >= ranks:
        return np.split(tensor, ranks, axis)[rank]
    return np.take(tensor, [rank * units // ranks], axis)


def scatter(state: WholeState, rank: int, ranks: int) -> list[bytearray]:
    """Return the memory of a bundle on one rank: the state, and the pages."""
    window = np.concatenate(
        [share(part, 2, rank, ranks).reshape(*part.shape[:2], -1) for part in state.windows], axis=2
    )
    memory = share(state.heads, 1, rank, ranks).tobytes() + window.tobytes()
    return [bytearray(memory), bytearray(share(state.kv, 4, rank, ranks).tobytes())]


def gather(bundles: Sequence[Sequence[bytes | bytearray]], model: ModelConfig, pages: int) -> WholeState:
    """Return the tensors of the whole model from the memory of all ranks, whose replicas must be equal."""
    ranks = len(bundles)
    like = random_state(model, pages, 0)
    result = WholeState(
        np.zeros_like(like.heads), [np.zeros_like(part) for part in like.windows], np.zeros_like(like.kv)
    )
    written: set[tuple[int, int]] = set()

    def put(target: Tensor, number: int, axis: int, rank: int, local: Tensor) -> None:
        units = target.shape[axis]
        count = max(1, units // ranks)
        first = rank * units // ranks
        index = (slice(None),) * axis + (slice(first, first + count),)
        if (number, first) in written:
            assert np.array_equal(target[index], local), "two replicas differ"
        written.add((number, first))
        target[index] = local

    for rank, (state, kv) in enumerate(bundles):
        heads = share(like.heads, 1, rank, ranks)
        put(result.heads, 0, 1, rank, np.frombuffer(state, heads.dtype, heads.size).reshape(heads.shape))
        locals_ = [share(part, 2, rank, ranks) for part in like.windows]
        widths = [part.shape[2] * part.shape[3] for part in locals_]
        window = np.frombuffer(state, np.dtype("u2"), offset=heads.nbytes)
        window = window.reshape(*locals_[0].shape[:2], sum(widths))
        cuts = np.split(window, np.cumsum(widths)[:-1], axis=2)
        for number, (target, cut, part) in enumerate(zip(result.windows, cuts, locals_, strict=True), 1):
            put(target, number, 2, rank, cut.reshape(part.shape))
        pages_of_rank = share(like.kv, 4, rank, ranks)
        put(result.kv, 9, 4, rank, np.frombuffer(kv, np.dtype("u2")).reshape(pages_of_rank.shape))
    return result


def same(first: WholeState, second: WholeState) -> bool:
    """Return whether two states are equal, bit for bit."""
    return (
        np.array_equal(first.heads, second.heads)
        and all(map(np.array_equal, first.windows, second.windows))
        and np.array_equal(first.kv, second.kv)
    )
