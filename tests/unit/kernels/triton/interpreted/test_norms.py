"""Norms over rows of awkward widths; the sum in front of a norm is stored as it is normed."""

import pytest
import torch

from mamba_kernels.gated_norm.reference import gated_norm as gated_reference
from mamba_kernels.gated_norm.triton import call as gated_call
from mamba_kernels.gated_norm.triton import gated_norm
from mamba_kernels.rms_norm.reference import rms_norm as rms_reference
from mamba_kernels.rms_norm.triton import rms_norm
from mamba_kernels.triton_support import row_loop, rows_of_a_program
from triton_close import close

KINDS = [torch.float32, torch.bfloat16]


def rows(width: int, seed: int, kind: torch.dtype) -> torch.Tensor:
    """Return [3, width] as a part of wider rows."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, width + 9, generator=g).to(kind)[:, 4 : 4 + width]


@pytest.mark.parametrize(
    ("width", "kind"), [(1, torch.float32), (63, torch.bfloat16), (100, torch.float32), (257, torch.bfloat16)]
)
def test_rms_norm_equals_the_reference(width: int, kind: torch.dtype) -> None:
    weight = rows(width, 3, kind)[0]
    for x in (rows(width, 1, torch.float32), rows(width, 2, kind)):
        y = rms_norm(x, weight, 1e-5)
        assert y.dtype == kind
        close(y, rms_reference(x.double(), weight.double(), 1e-5))


@pytest.mark.parametrize(("width", "groups"), [(63, 7), (100, 1), (2304, 9)])
def test_rms_norm_of_heads_that_lie_side_by_side_equals_the_reference(width: int, groups: int) -> None:
    x, weight = rows(width, 1, torch.bfloat16), rows(width, 3, torch.float32)[0]
    y = rms_norm(x, weight, 1e-5, None, torch.bfloat16, groups)
    assert y.dtype == torch.bfloat16
    parts = (x.unflatten(1, (groups, -1))[:, head].double() for head in range(groups))
    factors = weight.double().chunk(groups)
    expected = [rms_reference(part, factor, 1e-5) for part, factor in zip(parts, factors, strict=True)]
    close(y, torch.cat(expected, 1))


def test_rms_norm_takes_a_wider_weight_than_it_gives() -> None:
    x, weight = rows(100, 1, torch.bfloat16), 1 + 2e-3 * rows(100, 3, torch.float32)[0]
    y = rms_norm(x, weight, 1e-5, None, torch.bfloat16)
    assert y.dtype == torch.bfloat16
    close(y, rms_reference(x.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("stream", KINDS)
def test_rms_norm_adds_to_the_stream_first_and_norms_what_it_stored(stream: torch.dtype) -> None:
    x, added, weight = rows(100, 1, stream), rows(100, 2, torch.bfloat16), rows(100, 3, torch.bfloat16)[0]
    total = x.double() + added.double()
    y = rms_norm(x, weight, 1e-5, added)
    close(x, total)
    close(y, rms_reference(x.double(), weight.double(), 1e-5))


@pytest.mark.parametrize(
    ("width", "groups", "kind"),
    [(1, 1, torch.bfloat16), (63, 7, torch.float32), (100, 1, torch.bfloat16), (514, 2, torch.float32)],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_gated_norm_equals_the_reference(width: int, groups: int, kind: torch.dtype, weighted: bool) -> None:
    y, gate = rows(width, 1, torch.float32), rows(width, 2, kind)
    weight = rows(width, 3, kind)[0] if weighted else None
    out = gated_norm(y, gate, weight, 1e-5, groups)
    assert out.dtype == kind
    wide = None if weight is None else weight.double()
    close(out, gated_reference(y.double(), gate.double(), wide, 1e-5, groups))


@pytest.mark.parametrize(
    ("width", "groups", "kind"),
    [(1, 1, torch.bfloat16), (63, 7, torch.float32), (100, 1, torch.bfloat16), (768, 6, torch.bfloat16),
     (4096, 32, torch.bfloat16), (2400, 3, torch.float32)],
)  # fmt: skip
@pytest.mark.parametrize("alike", [True, False])
def test_a_norm_in_front_of_the_gate_equals_the_reference(
    width: int, groups: int, kind: torch.dtype, alike: bool
) -> None:
    """A weight of one group is that of every group; y has the type of the gate, or is wider."""
    gate = rows(width, 2, kind)
    weight = rows(width // groups if alike else width, 3, kind)[0]
    for y in (rows(width, 1, kind), rows(width, 4, torch.float32)):
        out = gated_norm(y, gate, weight, 1e-6, groups, True)
        assert out.dtype == kind
        close(out, gated_reference(y.double(), gate.double(), weight.double(), 1e-6, groups, True))


def test_all_of_a_gated_row_and_nothing_else_is_written() -> None:
    """Six groups of 100, of which a program takes eight at once."""
    y, gate, weight = (
        rows(600, 1, torch.bfloat16),
        rows(600, 2, torch.bfloat16),
        rows(100, 3, torch.bfloat16)[0],
    )
    whole = torch.full((5, 608), float("nan"), dtype=torch.bfloat16)
    gated_call(y, gate, weight, 1e-6, 6, whole[1:-1, 4:-4], True).run()
    close(whole[1:-1, 4:-4], gated_reference(y.double(), gate.double(), weight.double(), 1e-6, 6, True))
    whole[1:-1, 4:-4] = float("nan")
    assert whole.isnan().all()


def test_no_rows_are_no_launch() -> None:
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


@pytest.mark.parametrize(
    ("rows", "parts", "of_a_program"), [(1, 1, 1), (2047, 1, 1), (2048, 1, 2), (256, 8, 2), (100_000, 8, 8)]
)
def test_a_program_takes_more_rows_where_a_gpu_is_busy_all_the_same(
    rows: int, parts: int, of_a_program: int
) -> None:
    assert rows_of_a_program(rows, parts) == of_a_program


def test_a_row_has_the_same_bits_whatever_a_program_takes_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 rows are 13 programs, five of three rows, the last of one, and two."""
    g = torch.Generator().manual_seed(0)
    x, added, weight = (torch.randn(*shape, generator=g).bfloat16() for shape in ((13, 60), (13, 60), (60,)))
    results = []
    for programs in (1024, 4, 1):
        monkeypatch.setattr(row_loop, "PROGRAMS", programs)
        stream = x.clone()
        results.append((rms_norm(stream, weight, 1e-5, added), stream, gated_norm(x, added, weight, 1e-5, 1)))
        assert rows_of_a_program(13) == {1024: 1, 4: 3, 1: 8}[programs]
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))
