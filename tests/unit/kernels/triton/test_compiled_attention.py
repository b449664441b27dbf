"""Attention and its writes compile for every GPU we name: nothing spilled, 128 bits a load, tensor cores."""

import numpy as np
import pytest
import torch

from compile_matrix import SHARED
from compiled_kernel import CAPABILITIES, compiled
from mamba_kernels.fp8_pages import Fp8Pages
from mamba_kernels.kv_write.triton import write_call
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.paged_attention import triton as kernels
from mamba_kernels.paged_attention.triton import calls
from mamba_kernels.rope.triton import rope_call
from matrix_size import LARGE

META = torch.device("meta")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def arena(kv_heads: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return one layer of four, out of pages of 16 positions."""
    return meta(64, 4, 2, 16, kv_heads, width, dtype=dtype)[:, 1]


def plan() -> AttentionPlan:
    starts = np.array([0, 1, 2, 34, 98], np.int32)
    return AttentionPlan(
        groups=[],
        pieces=[],
        tokens=98,
        decodes=2,
        longest_piece=64,
        page_table=meta(4, 8, dtype=torch.int32),
        table_row=meta(4, dtype=torch.int32),
        context_len=meta(4, dtype=torch.int32),
        query_start=meta(len(starts), dtype=torch.int32),
    )


SHAPES = [
    (32, 8, 128, 90, torch.bfloat16),
    (12, 4, 64, 90, torch.bfloat16),
    (16, 2, 256, 90, torch.bfloat16),
    (32, 1, 576, 90, torch.bfloat16),
    (32, 8, 128, 89, torch.float32),
]
OTHER_SHAPES = [
    (32, 8, 128, 80, torch.bfloat16),
    (32, 8, 128, 100, torch.bfloat16),
    (16, 2, 256, 89, torch.bfloat16),
    (12, 4, 128, 89, torch.bfloat16),
    (32, 1, 576, 80, torch.bfloat16),
    (32, 1, 576, 89, torch.bfloat16),
    (32, 1, 576, 100, torch.bfloat16),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "capability", "dtype"), [*SHAPES, *(OTHER_SHAPES if LARGE else ())]
)
def test_attention(
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    kv_heads: int,
    width: int,
    capability: int,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(kernels, "warp_groups", lambda _: capability in (90, 100))
    query = meta(98, heads, width, dtype=dtype)
    pages = arena(kv_heads, width, dtype)
    decode, combine, extend = calls(query, pages, 0.1, plan(), torch.empty_like(query))
    for call in (decode, extend):
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.shared <= SHARED[capability]
        assert kernel.widest_load == 128
        assert kernel.tensor_cores
    kernel = compiled(combine, capability)
    assert kernel.stack == 0
    assert ".f64" not in kernel.ptx, "a constant that float32 has not makes doubles of all it meets"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "capability"),
    [(32, 8, 128, 80), (16, 2, 256, 90), (32, 1, 576, 89), (12, 4, 64, 120)] if LARGE else [],
)
def test_pages_of_fp8(heads: int, kv_heads: int, width: int, capability: int) -> None:
    """GPUs without instructions for FP8 have them, too."""
    query, page = meta(98, heads, width), 2 * 16 * kv_heads * (width + 1)
    memory = meta(64, 4, page, dtype=torch.uint8)[:, 1]
    numbers = memory[:, : 2 * 16 * kv_heads * width].unflatten(1, (2, 16, kv_heads, width))
    scales = memory[:, 2 * 16 * kv_heads * width :].unflatten(1, (2, 16, kv_heads))
    pages = Fp8Pages(numbers, scales)
    decode, _, extend = calls(query, pages, 0.1, plan(), torch.empty_like(query))
    place = meta(98, dtype=torch.int64)
    write = write_call(pages, query[:, :kv_heads], query[:, :kv_heads], place, place)
    for call in (decode, extend, write):
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.shared <= SHARED[capability]
        assert kernel.widest_load >= 64
        assert kernel.tensor_cores or call is write


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_rotary_positions(capability: int) -> None:
    angles = meta(98, 64, dtype=torch.float32)
    kernel = compiled(rope_call(meta(98, 40, 128), angles, angles), capability)
    assert kernel.stack == 0
    assert kernel.widest_load == kernel.widest_store == 128


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_writes(capability: int) -> None:
    rows = meta(98, 3, 8, 128)
    pages = meta(98, dtype=torch.int64)
    kernel = compiled(write_call(arena(8, 128), rows[:, 0], rows[:, 1], pages, pages), capability)
    assert kernel.stack == 0
    assert kernel.widest_load == kernel.widest_store == 128
