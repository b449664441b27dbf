"""Attention of prompts over scattered pages equals plain causal attention over each sequence alone."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.paged_extend import PagedExtender
from mamba_kernels.paged_attention import AttentionPlan
from testmodels.chunks import CPU, ints, poisoned, strided_cache

pytestmark = pytest.mark.matrix_unit

PIECES = [(1, 1), (63, 63), (100, 2), (257, 100), (64, 1), (130, 65)]
"""(context, the last rows of it that are new)"""
SCALE = 0.3


class Pieces:
    """Sequences with scattered pages, one of them a decode before the pieces, and their exact answers."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        dtype: torch.dtype,
        scale: float = SCALE,
    ) -> None:
        self.shape, self.page_size, self.scale = (heads, kv_heads, head_dim), page_size, scale
        g = torch.Generator().manual_seed(head_dim)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g).to(dtype)

        counts = [-(-context // page_size) for context, _ in PIECES]
        pages = (torch.randperm(sum(counts), generator=g) + 1).tolist()
        self.table = ints([[pages.pop() for _ in range(n)] + [-1] * (max(counts) - n) for n in counts])
        self.kv = strided_cache(sum(counts) + 1, 2, page_size, kv_heads, head_dim, dtype=dtype)
        self.queries, parts = [], []
        for row, (context, new) in enumerate(PIECES):
            stored = rand(context, 2, kv_heads, head_dim)
            for position in range(context):
                page = self.table[row, position // page_size]
                self.kv[page, :, position % page_size] = stored[position]
            query = rand(new, heads * head_dim + 3)[:, : heads * head_dim].unflatten(1, (heads, -1))
            key, value = stored.double().repeat_interleave(heads // kv_heads, 2).unbind(1)
            scores = torch.einsum("qhd,thd->hqt", query.double(), key) * scale
            later = torch.arange(context) > torch.arange(context - new, context)[:, None]
            weights = scores.masked_fill(later, -torch.inf).softmax(2)
            parts.append(torch.einsum("hqt,thd->qhd", weights, value))
            self.queries.append(query)
        self.expected = torch.cat(parts)

    def run(self, library: Library, pieces: list[int], new: dict[int, int] | None = None) -> torch.Tensor:
        """Run the pieces. `new`: computed rows of a piece, where not all are."""
        heads, kv_heads, head_dim = self.shape
        rows = [(new or {}).get(piece, PIECES[piece][1]) for piece in pieces]
        query = torch.cat([self.queries[piece][-count:] for piece, count in zip(pieces, rows, strict=True)])
        wide = torch.zeros(len(query) + 1, heads * head_dim + 5, dtype=query.dtype)
        wide[1:, : heads * head_dim] = query.flatten(1)
        plan = AttentionPlan.build(
            decodes=1,
            query_start=ints(np.cumsum([0, 1, *rows])),
            context_len=ints([1, *(PIECES[piece][0] for piece in pieces)]),
            page_table=torch.from_numpy(self.table),
            table_row=ints([0, *pieces]),
            page_size=self.page_size,
            device=CPU,
            gathered=False,
        )
        out = poisoned(len(query), heads, head_dim, dtype=self.kv.dtype)
        call = PagedExtender(library, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=self.scale)
        call(wide[1:, : heads * head_dim].unflatten(1, (heads, -1)), self.kv, plan, out)
        return out


EVERYONE = list(range(len(PIECES)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"),
    [
        (4, 4, 64, 16),
        (6, 2, 63, 4),
        (5, 1, 100, 1),
        (2, 1, 256, 16),
        (3, 1, 576, 16),
        (1, 1, 1, 3),
        (70, 1, 8, 16),
    ],
)
def test_each_row_attends_to_its_own_past(
    library: Library, heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    # Scores of wide heads are sums of so many products: as models do, the scale makes up for it.
    scale = SCALE if head_dim <= 256 else head_dim**-0.5
    pieces = Pieces(heads, kv_heads, head_dim, page_size, dtype, scale=scale)
    got = pieces.run(library, EVERYONE).double()
    torch.testing.assert_close(got, pieces.expected, rtol=tolerance, atol=4 * tolerance)


def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int
) -> None:
    pieces = Pieces(12, 4, 64, 16, torch.bfloat16)
    library.set_threads(threads)
    together = pieces.run(library, EVERYONE).split([new for _, new in PIECES])
    library.set_threads(1)
    for piece in EVERYONE:
        assert torch.equal(pieces.run(library, [piece]), together[piece])
        assert torch.equal(pieces.run(library, [piece], {piece: 1})[0], together[piece][-1])


def test_large_scores_neither_overflow_nor_vanish(library: Library) -> None:
    pieces = Pieces(4, 2, 64, 16, torch.float32, scale=40.0)
    got = pieces.run(library, EVERYONE).double()
    torch.testing.assert_close(got, pieces.expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_key_that_is_not_a_number_shows_in_its_own_piece_and_heads_alone(
    library: Library, dtype: torch.dtype
) -> None:
    pieces = Pieces(4, 2, 64, 16, dtype)
    pieces.kv[pieces.table[3, 200 // 16], 0, 200 % 16, 1, 63] = torch.nan
    spoilt = pieces.run(library, EVERYONE).isnan().all(2).split([new for _, new in PIECES])
    assert [bool(part.any()) for part in spoilt] == [False, False, False, True, False, False]
    assert spoilt[3].any(0).tolist() == [False, False, True, True], "the query heads of that KV head"
    assert spoilt[3][:, 2].tolist() == [position >= 200 for position in range(157, 257)]


def test_every_instruction_set_gives_the_same_bits(assert_same_bits: Callable[..., None]) -> None:
    _attend_on_each(assert_same_bits, torch.float32)


def test_all_lanes_give_the_same_bits_with_bfloat16(
    assert_products_have_same_bits: Callable[..., None],
) -> None:
    _attend_on_each(assert_products_have_same_bits, torch.bfloat16)


def _attend_on_each(assert_same: Callable[..., None], dtype: torch.dtype) -> None:
    for shape in ((12, 4, 64, 16), (6, 2, 63, 4)):
        pieces = Pieces(*shape, dtype)
        assert_same(lambda library, pieces=pieces: (pieces.run(library, list(range(len(PIECES)))),))
