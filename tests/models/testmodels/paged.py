"""Ragged batches over scattered pages, and what attention over them comes to by the textbook."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mamba_kernels.fp8_pages import Fp8Pages, Pages
from mamba_kernels.kv_write import kv_write
from mamba_kernels.paged_attention import AttentionPlan, paged_attention
from mamba_kernels.slot_plan import index_tensor
from testmodels.chunks import CPU, ints, poisoned, strided_cache
from testmodels.no_sync import no_sync

SCALE = 0.3
Operator = Callable[[torch.Tensor, Pages, float, AttentionPlan, torch.Tensor], None]


def textbook(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute attention. query: [n, heads, d], the last n positions; key, value: [context, kv_heads, d]."""
    n, heads, _ = query.shape
    context = len(key)
    key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    future = torch.arange(context) > torch.arange(context - n, context)[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), value)


def fp8_pages(pages: int, page_size: int, kv_heads: int, width: int) -> Fp8Pages:
    """Return pages of FP8 in one allocation, as in the arena; what was never written is read as NaN."""
    row, scales = 2 * page_size * kv_heads * width, 2 * page_size * kv_heads
    memory = torch.full((pages, row + scales + 5), 255, dtype=torch.uint8)
    shape = (2, page_size, kv_heads)
    return Fp8Pages(
        memory[:, :row].unflatten(1, (*shape, width)), memory[:, row : row + scales].unflatten(1, shape)
    )


class PagedBatch:
    """Sequences of `contexts` tokens of which the last `news` are this step's; decodes come first."""

    def __init__(
        self, news: list[int], contexts: list[int], *, heads: int = 4, kv_heads: int = 2, page_size: int = 4,
        width: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0, fp8: bool = False,
    ) -> None:  # fmt: skip
        """Write random keys and values to scattered pages of type `dtype`, or of FP8."""
        g = torch.Generator().manual_seed(seed)
        self.decodes = sum(n == 1 for n in news)
        self.query_start = np.cumsum([0, *news]).astype(np.int32)
        self.contexts = contexts
        self.page_size = page_size
        counts = [-(-context // page_size) for context in contexts]
        shuffled = (torch.randperm(sum(counts), generator=g) + 1).tolist()
        most = max(counts)
        self.table = ints([[shuffled.pop() for _ in range(n)] + [-1] * (most - n) for n in counts])

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

        self.kv: Any = strided_cache(sum(counts) + 1, 2, page_size, kv_heads, width, dtype=dtype)
        if fp8:
            self.kv = fp8_pages(sum(counts) + 1, page_size, kv_heads, width)
        self.query = rand(int(self.query_start[-1]), heads, width)
        self.keys = [rand(context, kv_heads, width) for context in contexts]
        self.values = [rand(context, kv_heads, width) for context in contexts]
        for sequence, context in enumerate(contexts):
            positions = np.arange(context)
            kv_write(
                self.kv,
                self.keys[sequence],
                self.values[sequence],
                index_tensor(self.table[sequence, positions // page_size], CPU),
                index_tensor(positions % page_size, CPU),
            )

    def plan(self) -> AttentionPlan:
        return AttentionPlan.build(
            decodes=self.decodes,
            query_start=self.query_start,
            context_len=ints(self.contexts),
            page_table=torch.from_numpy(self.table),
            page_size=self.page_size,
            device=CPU,
        )

    def attend(self, operator: Operator = paged_attention) -> torch.Tensor:
        """Return the output of `operator`, and check that it is written whole."""
        out = poisoned(*self.query.shape, dtype=self.query.dtype)
        with no_sync():
            operator(self.query, self.kv, SCALE, self.plan(), out)
        return out

    def expected(self) -> torch.Tensor:
        parts = []
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            rows = self.query[self.query_start[i] : self.query_start[i + 1]]
            parts.append(textbook(rows.double(), key.double(), value.double(), SCALE))
        return torch.cat(parts)
