"""Attention of decodes over scattered pages equals plain attention over each sequence's keys and values."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.paged_decode import PagedDecoder
from mamba_kernels.paged_attention import AttentionPlan
from testmodels.chunks import CPU, ints, poisoned, strided_cache

CONTEXTS = [1, 2, 63, 100, 257, 64]
SCALE = 0.3


class Decodes:
    """Sequences with scattered pages, and their exact answers."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype) -> None:
        self.shape = (heads, kv_heads, head_dim)
        g = torch.Generator().manual_seed(head_dim)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g).to(dtype)

        counts = [-(-context // page_size) for context in CONTEXTS]
        pages = (torch.randperm(sum(counts), generator=g) + 1).tolist()
        self.table = ints([[pages.pop() for _ in range(n)] + [-1] * (max(counts) - n) for n in counts])
        self.kv = strided_cache(sum(counts) + 1, 2, page_size, kv_heads, head_dim, dtype=dtype)
        rows = rand(len(CONTEXTS), heads * head_dim + 3)[:, : heads * head_dim]
        self.query = rows.unflatten(1, (heads, -1))
        parts = []
        for row, context in enumerate(CONTEXTS):
            stored = rand(context, 2, kv_heads, head_dim)
            for position in range(context):
                page = self.table[row, position // page_size]
                self.kv[page, :, position % page_size] = stored[position]
            key, value = stored.double().repeat_interleave(heads // kv_heads, 2).unbind(1)
            weights = (torch.einsum("hd,thd->ht", self.query[row].double(), key) * SCALE).softmax(1)
            parts.append(torch.einsum("ht,thd->hd", weights, value))
        self.expected = torch.stack(parts)
        self.page_size = page_size

    def run(self, library: Library, rows: list[int]) -> torch.Tensor:
        heads, kv_heads, head_dim = self.shape
        plan = AttentionPlan.build(
            decodes=len(rows),
            query_start=np.arange(len(rows) + 1, dtype=np.int32),
            context_len=ints(CONTEXTS)[rows],
            page_table=torch.from_numpy(self.table),
            table_row=ints(rows),
            page_size=self.page_size,
            device=CPU,
        )
        out = poisoned(len(rows), heads, head_dim, dtype=self.kv.dtype)
        decoder = PagedDecoder(library, heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=SCALE)
        decoder(self.query[rows[0] : rows[-1] + 1], self.kv, plan, out)
        return out


EVERYONE = list(range(len(CONTEXTS)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"),
    [
        (4, 4, 64, 16),
        (6, 2, 63, 4),
        (5, 1, 100, 1),
        (4, 2, 128, 5),
        (2, 1, 256, 16),
        (3, 1, 576, 16),
        (1, 1, 1, 3),
    ],
)
def test_each_row_attends_to_its_own_context(
    library: Library, heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    decodes = Decodes(heads, kv_heads, head_dim, page_size, dtype)
    got = decodes.run(library, EVERYONE).double()
    torch.testing.assert_close(got, decodes.expected, rtol=tolerance, atol=4 * tolerance)


def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int
) -> None:
    decodes = Decodes(12, 4, 64, 16, torch.bfloat16)
    library.set_threads(threads)
    together = decodes.run(library, EVERYONE)
    library.set_threads(1)
    for row in EVERYONE:
        assert torch.equal(decodes.run(library, [row])[0], together[row])


def test_a_key_that_is_not_a_number_shows_in_its_own_row_alone(library: Library) -> None:
    decodes = Decodes(4, 2, 64, 16, torch.float32)
    decodes.kv[decodes.table[2, 62 // 16], 0, 62 % 16, 1, 63] = torch.nan
    spoilt = decodes.run(library, EVERYONE).isnan()
    assert spoilt.flatten(1).any(1).tolist() == [False, False, True, False, False, False]
    assert spoilt[2].all(1).tolist() == [False, False, True, True], "the query heads of that KV head"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    for shape in ((12, 4, 64, 16), (6, 2, 63, 4), (4, 2, 128, 5)):
        decodes = Decodes(*shape, dtype)
        assert_same_bits(lambda library, decodes=decodes: (decodes.run(library, EVERYONE),))
