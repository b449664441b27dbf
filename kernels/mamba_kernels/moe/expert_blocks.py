# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Pairs of a row and an expert, sorted by expert on a GPU into blocks of one expert each.

A pair has the number row * k + j. The largest number of blocks follows from shapes alone. Ranks are counted
rather than drawn by atomics, so the order within an expert is that of the pairs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mamba_kernels.triton_support import KernelCall, Launch, block_of, ceil_div

TILE = 1024
"""Pairs that are processed together while they are sorted."""
MAX_PAIRS_COUNTED_INLINE, MAX_EXPERTS_COUNTED_INLINE = 4096, 1024
"""Largest number of pairs for which each program counts the pairs of all experts itself, and largest number
of experts whose counts it holds. Above either, a separate launch counts them, one expert per program."""
LEAST_ROWS, MOST_ROWS = 16, 64
"""Bounds on the pairs of a block: the smallest tile of tensor cores, and enough to hide weight loads."""


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Pairs of a row and an expert, sorted into blocks of one expert each.

    The tensors are allocated here, and written by the launches of `sort_calls`.
    """

    rows: int
    """Pairs of a block."""
    expert: torch.Tensor
    """[blocks] int32: expert of each block; -1 = unused block."""
    pairs: torch.Tensor
    """[blocks * rows] int32: pairs of each block; -1 = padding. Undefined in unused blocks."""

    @classmethod
    def empty(cls, experts: torch.Tensor, count: int) -> "ExpertBlocks":
        """Allocate the largest number of blocks that the pairs of `experts` [n, k] can need.

        Each expert that is hit wastes less than one block.
        """
        pairs = experts.numel()
        rows = rows_of_a_block(pairs, count)
        most = (pairs + min(pairs, count) * (rows - 1)) // rows
        return cls(rows, experts.new_empty(most), experts.new_empty(most * rows))


def rows_of_a_block(pairs: int, experts: int) -> int:
    """Return the number of pairs of a block: the average per expert as a power of two, within bounds.

    The number follows from shapes alone, so a graph can capture the grid.
    """
    return block_of(ceil_div(pairs, experts), least=LEAST_ROWS, most=MOST_ROWS)


def counted_apart(pairs: int, experts: int) -> bool:
    """Return whether there are so many pairs or experts that a separate launch counts each expert's pairs."""
    return pairs > MAX_PAIRS_COUNTED_INLINE or experts > MAX_EXPERTS_COUNTED_INLINE


def row_counts_of_forms(most: int, k: int, experts: int, *, shared: bool) -> list[int]:
    """Return for each compiled form of a mixture's kernels its smallest number of rows, if at most `most`.

    A row has `k` of the `experts` experts. `shared` says whether there is a shared expert, too.
    """
    row_counts, largest_form, previous = list[int](), (MOST_ROWS, True, MOST_ROWS), None
    for rows in range(1, most + 1):
        pairs = rows * k
        shared_rows = rows_of_a_block(rows, 1) if shared else MOST_ROWS
        form = (rows_of_a_block(pairs, experts), counted_apart(pairs, experts), shared_rows)
        if form != previous:
            row_counts.append(rows)
        if form == largest_form:
            break
        previous = form
    return row_counts


@triton.jit(do_not_specialize=["pairs"])
def count_kernel(experts, counts, pairs, TILE: tl.constexpr):
    """Grid (experts,): count the pairs of each expert."""
    expert = tl.program_id(0)
    matches = tl.zeros([TILE], tl.int32)
    for start in range(0, pairs, TILE):
        pair = start + tl.arange(0, TILE)
        matches += (tl.load(experts + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(matches, 0))


@triton.jit
def _counts(experts, pairs, PADDED: tl.constexpr, TILE: tl.constexpr):
    """Count the pairs of all experts."""
    counts = tl.zeros([PADDED], tl.int32)
    for start in range(0, pairs, TILE):
        pair = start + tl.arange(0, TILE)
        expert = tl.load(experts + pair, mask=pair < pairs, other=-1)
        counts += tl.histogram(expert, PADDED, mask=expert >= 0)
    return counts


@triton.jit(do_not_specialize=["pairs", "most", "rows"])
def place_kernel(
    experts, counts, block_expert, block_pairs, pairs, most, rows,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, MOST_ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (experts,): write each expert's blocks, with its pairs in order, and -1 after them.

    The program of the last expert marks the blocks after its own as unused. Without `counts` each program
    counts the pairs itself.
    """
    expert = tl.program_id(0)
    e = tl.arange(0, PADDED)
    if counts is None:
        expert_counts = _counts(experts, pairs, PADDED, TILE)
    else:
        expert_counts = tl.load(counts + e, mask=e < EXPERTS, other=0)
    blocks = (expert_counts + (rows - 1)) // rows
    first = tl.sum(tl.where(e < expert, blocks, 0), 0)
    end = first + tl.sum(tl.where(e == expert, blocks, 0), 0)
    t = tl.arange(0, TILE)
    for start in range(first, end, TILE):
        block = start + t
        tl.store(block_expert + block, expert, mask=block < end)
    if expert == EXPERTS - 1:
        for start in range(end, most, TILE):
            block = start + t
            tl.store(block_expert + block, -1, mask=block < most)
    next_pair = first * rows
    for start in range(0, pairs, TILE):
        pair = start + t
        in_expert = tl.load(experts + pair, mask=pair < pairs, other=-1) == expert
        rank = tl.cumsum(in_expert.to(tl.int32), 0)
        tl.store(block_pairs + next_pair + rank - 1, pair, mask=in_expert)
        next_pair += tl.sum(in_expert.to(tl.int32), 0)
    padding = next_pair + tl.arange(0, MOST_ROWS)
    tl.store(block_pairs + padding, -1, mask=padding < end * rows)


def sort_calls(experts: torch.Tensor, count: int, blocks: ExpertBlocks) -> list[KernelCall]:
    """Return the launches that fill `blocks`: one for few pairs, as in a decode, two for many.

    `experts` are [n, k] int32, dense, and `count` is the number of experts.
    """
    pairs = experts.numel()
    counts = experts.new_empty(count) if counted_apart(pairs, count) else None
    pair_arguments = {"experts": experts, "counts": counts, "pairs": pairs}
    block_arguments = {
        "block_expert": blocks.expert,
        "block_pairs": blocks.pairs,
        "most": len(blocks.expert),
        "rows": blocks.rows,
    }
    sizes = {"EXPERTS": count, "PADDED": block_of(count), "MOST_ROWS": MOST_ROWS, "TILE": TILE}
    place = KernelCall(place_kernel, (count,), pair_arguments | block_arguments, sizes, Launch(4))
    if counts is None:
        return [place]
    return [KernelCall(count_kernel, (count,), pair_arguments, {"TILE": TILE}, Launch(4)), place]
