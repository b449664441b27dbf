"""Triton's mixture of experts equals its definition in float64; experts that nobody chose cost nothing."""

import pytest
import torch

from kernel_variants import variants
from mamba_kernels.moe import Activation, SharedExpert, expert_blocks
from mamba_kernels.moe.expert_blocks import ExpertBlocks, sort_calls
from mamba_kernels.moe.triton import moe
from matrix_size import LARGE
from testmodels.experts import ExpertBatch


def close(batch: ExpertBatch) -> None:
    step = max(torch.finfo(batch.dtype).eps, 1e-6)
    torch.testing.assert_close(batch.run(moe).double(), batch.expected(), rtol=4 * step, atol=4 * step)


SIZES = [
    (1, 1, 16, 16, torch.float32), (1, 8, 130, 65, torch.bfloat16), (5, 2, 7, 3, torch.float32),
    (100, 3, 40, 72, torch.float16),
]  # fmt: skip


@pytest.mark.parametrize(
    ("n", "k", "d", "f", "dtype", "activation"),
    [
        (*size, activation)
        for number, size in enumerate(SIZES)
        for activation in (Activation if LARGE else [[*Activation][number % len(Activation)]])
    ],
)
def test_rows_equal_their_definition(
    n: int, k: int, d: int, f: int, dtype: torch.dtype, activation: Activation
) -> None:
    close(ExpertBatch(n, E=9, k=k, d=d, f=f, activation=activation, dtype=dtype, shared_f=f + 4))


def test_all_rows_may_go_to_one_expert() -> None:
    batch = ExpertBatch(150, E=3, k=1, dtype=torch.float32)
    batch.experts[:] = 1
    close(batch)


def test_one_expert_is_enough() -> None:
    close(ExpertBatch(17, E=1, k=1, dtype=torch.float32))


def test_more_pairs_than_are_sorted_together() -> None:
    close(ExpertBatch(300, E=7, k=4, d=8, f=8, dtype=torch.float32))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 3), (300, 4)])
def test_many_pairs_are_counted_apart_into_the_same_blocks(
    monkeypatch: pytest.MonkeyPatch, n: int, k: int
) -> None:
    generator = torch.Generator().manual_seed(n)
    experts = torch.randint(-1, 7, (n, k), generator=generator, dtype=torch.int32)
    sorted_pairs = []
    for most in (n * k, n * k - 1):
        monkeypatch.setattr(expert_blocks, "MAX_PAIRS_COUNTED_INLINE", most)
        blocks = ExpertBlocks.empty(experts, 7)
        blocks.expert.fill_(-9)
        blocks.pairs.fill_(-9)
        calls = sort_calls(experts, 7, blocks)
        assert len(calls) == (1 if most == n * k else 2)
        for call in calls:
            call.run()
        owners = [
            (int(each), blocks.pairs[at : at + blocks.rows].tolist())
            for each, at in zip(blocks.expert, range(0, len(blocks.pairs), blocks.rows), strict=True)
        ]
        sorted_pairs.append([pairs for pairs in owners if pairs[0] >= 0])
        assert {owner for owner, _ in owners} <= {*range(-1, 7)}
    assert sorted_pairs[0] == sorted_pairs[1]
    placed = [(pair, owner) for owner, pairs in sorted_pairs[0] for pair in pairs if pair >= 0]
    wanted = experts.flatten().tolist()
    assert sorted(placed) == [(pair, owner) for pair, owner in enumerate(wanted) if owner >= 0]


def test_pairs_are_sorted_by_two_compilations_at_most() -> None:
    with variants() as seen:
        for n in (1, 5, 40, 300, 1100):
            experts = torch.zeros(n, 4, dtype=torch.int32)
            for call in sort_calls(experts, 7, ExpertBlocks.empty(experts, 7)):
                call.run()
    assert sorted(name for name, *_ in seen) == ["count_kernel", "place_kernel", "place_kernel"]


def test_weights_of_experts_that_nobody_chose_are_not_touched() -> None:
    batch = ExpertBatch(20, E=5, k=2, dtype=torch.float32)
    expected = batch.run(moe)
    batch.gate_up[4], batch.down[4] = float("nan"), float("nan")
    assert torch.equal(batch.run(moe), expected)


def test_a_row_without_experts_becomes_zero_whatever_it_holds() -> None:
    batch = ExpertBatch(6, dtype=torch.float32)
    before = batch.run(moe)
    batch.experts[2], batch.hidden[2] = -1, float("nan")
    after = batch.run(moe)
    assert not after[2].any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(after[others], before[others])


def test_a_row_has_the_same_bits_whatever_its_neighbours_are() -> None:
    batch = ExpertBatch(12, dtype=torch.float32, shared_f=8)
    before = batch.run(moe)
    batch.hidden[1:], batch.experts[1:] = batch.hidden[1:].flip(0), batch.experts[1:].flip(0)
    batch.weights[1:] = batch.weights[1:].flip(0)
    assert torch.equal(batch.run(moe)[0], before[0])


def test_a_shared_expert_counts_one_where_nothing_else_is_said() -> None:
    batch = ExpertBatch(4, dtype=torch.float32, shared_f=8)
    assert batch.shared is not None
    up, down = batch.shared.gate_up, batch.shared.down
    batch.shared = SharedExpert(up, down, torch.full((4,), float("inf")))
    expected = batch.run(moe)
    batch.shared = SharedExpert(up, down)
    assert torch.equal(batch.run(moe), expected)


def test_an_expert_beyond_two_gigabytes_of_elements_is_found() -> None:
    """Only the matrices that are chosen are touched: the rest of the reserved memory is never backed."""
    batch = ExpertBatch(3, E=2, k=1, d=16, f=16, dtype=torch.float16)
    batch.experts[:] = 1
    expected, gap = batch.run(moe), 1 << 31
    for name in ("gate_up", "down"):
        matrices = getattr(batch, name)
        last = matrices[1]
        far = torch.empty(gap + last.numel(), dtype=torch.float16)
        far[gap:] = last.flatten()
        setattr(batch, name, far.as_strided(matrices.shape, (gap, *matrices.stride()[1:])))
    assert torch.equal(batch.run(moe), expected)


def test_no_rows_are_no_launch() -> None:
    assert ExpertBatch(0, dtype=torch.float32).run(moe).shape == (0, 24)
