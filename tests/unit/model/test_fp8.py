"""Weights that are stored as FP8 are the numbers that their scales make of them, in each layout of scales."""

import pytest
import torch

from mamba_server.model.checkpoint.fp8 import dequantize

SHAPES = [(1, 1), (5, 3), (128, 128), (129, 257), (300, 70)]


def stored(*shape: int) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 20
    return made.to(torch.float8_e4m3fn)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_each_layout_of_scales(rows: int, columns: int, lead: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = stored(*lead, rows, columns)
    exact = weight.to(torch.float32)
    blocks = random(*lead, -(-rows // 128), -(-columns // 128))
    of_blocks = blocks[..., torch.arange(rows) // 128, :][..., torch.arange(columns) // 128]
    cases = [
        (random(), random()),
        (random(1), random(1)),
        (random(*lead, rows, 1), random(*lead, rows, 1)),
        (random(*lead, 1, columns), random(*lead, 1, columns)),
        (blocks, of_blocks),
    ]
    if not lead:
        cases.append((random(rows), random(rows)[:, None]))
    for scale, factors in cases:
        assert torch.equal(dequantize(weight, scale, dtype), (exact * factors).to(dtype))


def test_scales_of_experts_are_those_of_each() -> None:
    weight, scale = stored(4, 6, 5), random(4, 1, 1)
    assert torch.equal(dequantize(weight, scale, torch.float32), weight.to(torch.float32) * scale)


@pytest.mark.parametrize(
    ("weight", "scale"),
    [
        ((264, 48), (7, 1)),
        ((264, 48), (3,)),
        ((264, 48), (264, 1, 1)),
        ((4, 6, 5), (4,)),
        ((5,), ()),
        ((5,), (5,)),
    ],
)
def test_what_is_no_layout_is_refused(weight: tuple[int, ...], scale: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a scale of shape"):
        dequantize(stored(*weight), random(*scale), torch.float32)
