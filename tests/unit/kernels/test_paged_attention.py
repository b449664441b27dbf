"""Attention over scattered pages equals plain attention over each sequence's own keys and values."""

from dataclasses import replace

import pytest
import torch

from mamba_kernels.kv_write import kv_write
from mamba_kernels.paged_attention import paged_attention
from mamba_kernels.paged_attention import reference as path
from mamba_kernels.paged_attention.plan import padded_length
from mamba_kernels.slot_plan import NoHostRoutes
from testmodels.chunks import strided_cache
from testmodels.no_sync import no_sync
from testmodels.paged import PagedBatch


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_decodes_and_pieces_of_all_shapes_equal_plain_attention(
    heads: int, kv_heads: int, page_size: int
) -> None:
    batch = PagedBatch(
        [1, 1, 1, 1, 1, 3, 2, 63, 300, 5],
        [1, 2, 17, 100, 18, 3, 50, 63, 520, 257],
        heads=heads,
        kv_heads=kv_heads,
        page_size=page_size,
    )
    torch.testing.assert_close(batch.attend(), batch.expected(), rtol=1e-10, atol=1e-10)


def test_many_long_decodes_are_attended_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "GATHER_ELEMENTS", 3 * 20 * 2 * 6)  # three rows of width 6 padded to 20
    batch = PagedBatch([1] * 8, [18, 20, 19, 17, 20, 5, 6, 18])
    torch.testing.assert_close(batch.attend(), batch.expected(), rtol=1e-10, atol=1e-10)


def test_memory_that_was_never_written_is_never_read() -> None:
    batch = PagedBatch([1, 1, 4], [3, 21, 9])
    written = (~batch.kv.isnan()).sum()
    assert written == 2 * 2 * 6 * (3 + 21 + 9), "the rest of the pages is poison"
    assert not batch.attend().isnan().any()


@pytest.mark.parametrize("news", [[1, 1], [3]])
def test_a_plan_without_keys_is_refused_and_nothing_is_left_unwritten(news: list[int]) -> None:
    """Kernels read the table of pages; for them a plan gathers nothing."""
    batch = PagedBatch(news, [5] * len(news))
    plan = replace(batch.plan(), groups=[], pieces=[])
    with pytest.raises(NoHostRoutes, match="only Triton's kernels"):
        paged_attention(batch.query, batch.kv, 1.0, plan, torch.empty_like(batch.query))


@pytest.mark.parametrize("sequence", range(6))
def test_a_sequence_has_the_same_bits_alone_and_among_others(sequence: int) -> None:
    news, contexts = [1, 1, 1, 1, 40, 7], [5, 130, 131, 900, 40, 77]
    crowd = PagedBatch(news, contexts, dtype=torch.float32)
    rows = slice(int(crowd.query_start[sequence]), int(crowd.query_start[sequence + 1]))
    together = crowd.attend()[rows]
    alone = PagedBatch([news[sequence]], [contexts[sequence]], dtype=torch.float32)
    alone.query, alone.kv = crowd.query[rows], crowd.kv
    alone.table = crowd.table[sequence : sequence + 1]
    assert torch.equal(alone.attend(), together)


def test_padding_depends_on_the_own_context_and_costs_at_most_a_quarter() -> None:
    lengths = [padded_length(context) for context in range(1, 5000)]
    assert lengths == sorted(lengths)
    for context, length in enumerate(lengths, start=1):
        assert context <= length <= max(16, 1.25 * context)
    assert len(set(lengths)) < 40


def test_writes_go_to_their_page_and_nowhere_else() -> None:
    kv = strided_cache(5, 2, 4, 2, 3)
    key, value = torch.randn(3, 2, 3).double(), torch.randn(3, 2, 3).double()
    pages, offsets = torch.tensor([4, 1, 4]), torch.tensor([3, 0, 0])
    with no_sync():
        kv_write(kv, key, value, pages, offsets)
    for row, (page, offset) in enumerate([(4, 3), (1, 0), (4, 0)]):
        assert torch.equal(kv[page, 0, offset], key[row])
        assert torch.equal(kv[page, 1, offset], value[row])
    assert kv.isnan().sum() == kv.numel() - 3 * 2 * 2 * 3


def test_keys_are_stored_in_the_type_of_the_cache() -> None:
    kv = torch.zeros(2, 2, 4, 1, 3, dtype=torch.bfloat16)
    key = torch.full((1, 1, 3), 1.0 + 2**-12)
    kv_write(kv, key, -key, torch.tensor([1]), torch.tensor([2]))
    assert kv[1, 0, 2].tolist() == [[1.0, 1.0, 1.0]]
    assert kv[1, 1, 2].tolist() == [[-1.0, -1.0, -1.0]]
