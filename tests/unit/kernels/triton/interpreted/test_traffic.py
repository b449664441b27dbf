"""Bytes that each kernel moves, beside the least that its README names, at the proportions of real models.

Counted are the lanes that load and store, over the whole grid. What programs share (weights, B and C of a
group, the keys of neighbouring queries) comes from the caches but the first time: `moved` counts it once, and
what is too large for any cache must be asked for once.
"""

import pytest
import torch

from kernel_traffic import Traffic, counted
from mamba_kernels.activate import Function
from mamba_kernels.activate.triton import activate
from mamba_kernels.conv1d_prefill.triton import conv1d_prefill
from mamba_kernels.conv1d_update.triton import conv1d_update
from mamba_kernels.gated_delta.triton import gated_delta_prefill, gated_delta_update
from mamba_kernels.gated_norm.triton import gated_norm
from mamba_kernels.kv_write.triton import kv_write
from mamba_kernels.moe import Routing
from mamba_kernels.moe.triton import moe, route
from mamba_kernels.paged_attention.triton import paged_attention
from mamba_kernels.rms_norm.triton import rms_norm
from mamba_kernels.rope.triton import rope
from mamba_kernels.sample import PenaltyCounts, SampleParameters
from mamba_kernels.sample.noise import seed_words
from mamba_kernels.sample.triton import sample
from mamba_kernels.slot_copy.triton import slot_copy
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.triton import ssd_prefill
from mamba_kernels.state_update.triton import state_update
from mamba_kernels.triton_support import row_loop
from matrix_size import LARGE
from testmodels.chunks import CPU, Mixer, PiecePlan, chunk_plan, ints, poisoned
from testmodels.delta import Delta
from testmodels.experts import ExpertBatch
from testmodels.paged import PagedBatch

LIMIT = (0.0, 1e9)
MOST = 1.05
"""Times the least; 1.15 is promised."""


def assert_least(traffic: Traffic, least: int, *, asked: float) -> None:
    """Check the traffic. `asked`: requested bytes as a multiple of the minimum, caches included."""
    assert least <= traffic.moved <= MOST * least
    assert traffic.asked <= asked * least


@pytest.mark.parametrize(
    ("stored", "asked"), [(torch.float32, 1.03), (torch.float16, 1.06)][0 if LARGE else 1 :]
)
def test_a_state_is_read_once_and_written_where_it_belongs(stored: torch.dtype, asked: float) -> None:
    mixer = Mixer(H=16, P=64, N=128, G=1, T=2, dtype=torch.bfloat16)
    state, out = torch.zeros(8, 16, 64, 128, dtype=stored), poisoned(2, 16, 64, dtype=torch.bfloat16)
    plan = SlotPlan.build(ints([1, 2]), ints([1, 3]), ints([-1, 4]), CPU)
    with counted() as traffic:
        state_update(state, mixer.inputs(LIMIT), plan, out)
    assert traffic.asked_of(state) == (2 + 3) * state[0].nbytes, "one of two rows is tracked"
    assert_least(traffic, 5 * state[0].nbytes, asked=asked)


def test_a_window_is_read_once_and_written_once() -> None:
    """40 rows take three programs a block of channels, and the weights are read three times."""
    x, weight, bias = torch.randn(40, 512).bfloat16(), torch.randn(4, 512), torch.randn(512)
    window, rows = torch.zeros(44, 3, 512, dtype=torch.bfloat16), torch.arange(40).numpy()
    plan = SlotPlan.build(ints(rows + 1), ints(rows + 1), ints(0 * rows - 1), CPU)
    with counted() as traffic:
        conv1d_update(x, weight, bias, window, plan)
    assert traffic.asked_of(window) == 2 * 40 * window[0].nbytes
    assert_least(traffic, 2 * (x.nbytes + 40 * window[0].nbytes) + weight.nbytes + bias.nbytes, asked=1.07)


def test_a_convolution_of_pieces_reads_its_rows_once_but_for_those_before_a_program() -> None:
    plan = chunk_plan([PiecePlan(0, 256, -1, 1, {128: 2}), PiecePlan(64, 128, 3, 3, {})], 128)
    x, weight, bias = torch.randn(384, 256).bfloat16(), torch.randn(4, 256), torch.randn(256)
    window = torch.zeros(5, 3, 256, dtype=torch.bfloat16)
    with counted() as traffic:
        conv1d_prefill(x, weight, bias, window, plan)
    assert_least(traffic, 2 * x.nbytes + 4 * window[0].nbytes + weight.nbytes + bias.nbytes, asked=1.15)


@pytest.mark.parametrize(
    ("programs", "rms", "gated"), [(1024, 1.17, 1.26), (8, 1.09, 1.04)][0 if LARGE else 1 :]
)
def test_norms_read_and_write_a_row_once(
    monkeypatch: pytest.MonkeyPatch, programs: int, rms: float, gated: float
) -> None:
    """Count the reads of a weight: one for all rows of a program.

    16 rows are few for a GPU with this many programs, and many for a small one.
    """
    monkeypatch.setattr(row_loop, "PROGRAMS", programs)
    x, added, weight = torch.randn(16, 4096), torch.randn(16, 4096).bfloat16(), torch.ones(4096).bfloat16()
    with counted() as traffic:
        rms_norm(x, weight, 1e-5, added)
    assert traffic.asked_of(x) == 2 * x.nbytes, "the sum is stored"
    assert_least(traffic, 2 * x.nbytes + 2 * added.nbytes, asked=rms)
    with counted() as traffic:
        gated_norm(x, added, weight, 1e-5, 8)
    assert traffic.asked_of(x) == x.nbytes
    assert_least(traffic, x.nbytes + 2 * added.nbytes, asked=gated)


def test_a_norm_in_front_of_the_gate_reads_and_writes_a_row_once() -> None:
    y, projected = torch.randn(16, 1024).bfloat16(), torch.randn(16, 3072).bfloat16()
    with counted() as traffic:
        gated_norm(y, projected[:, 2048:], torch.ones(128).bfloat16(), 1e-6, 8, True)
    assert_least(traffic, 3 * y.nbytes, asked=1.05)


def test_activations_read_and_write_a_row_once() -> None:
    product = torch.randn(16, 4096).bfloat16()
    gate, up = product.chunk(2, 1)
    with counted() as traffic:
        activate(gate, Function.SILU, up)
    assert_least(traffic, 3 * 16 * 2048 * 2, asked=1.0)
    with counted() as traffic:
        activate(product, Function.SQUARED_RELU)
    assert_least(traffic, 2 * product.nbytes, asked=1.0)


def test_a_choice_of_experts_reads_its_logits_from_memory_once() -> None:
    logits = torch.randn(16, 128)
    with counted() as traffic:
        route(logits, Routing(6, "sigmoid", renormalise=True))
    assert_least(traffic, logits.nbytes + 16 * 6 * 8, asked=1.05)


def test_a_scan_keeps_the_state_and_reads_x_once() -> None:
    plan = chunk_plan([PiecePlan(0, 256, -1, 1, {128: 2}), PiecePlan(64, 128, 3, 3, {})], 128)
    mixer, state = Mixer(H=8, P=64, N=128, G=1, T=384, dtype=torch.bfloat16), torch.zeros(4, 8, 64, 128)
    out = poisoned(384, 8, 64, dtype=torch.bfloat16)
    with counted() as traffic:
        ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    assert traffic.asked_of(state) == 4 * state[0].nbytes, "one begins, two end, one checkpoint"
    assert traffic.asked_of(mixer.x) == mixer.x.nbytes
    assert_least(traffic, 384 * (2 * 8 * 64 + 2 * 128 + 8) * 2 + 4 * state[0].nbytes, asked=2.5)


@pytest.mark.parametrize(
    ("news", "contexts", "asked"), [([1, 1], [2000, 600], 1.08), *([([256], [512], 5.0)] if LARGE else [])]
)
def test_keys_and_values_come_from_memory_once(news: list[int], contexts: list[int], asked: float) -> None:
    batch = PagedBatch(news, contexts, heads=8, kv_heads=2, page_size=16, width=128, dtype=torch.bfloat16)
    with counted() as traffic:
        batch.attend(paged_attention)
    assert_least(traffic, sum(contexts) * 2 * 2 * 128 * 2 + 2 * batch.query.nbytes, asked=asked)


def test_a_delta_state_is_read_once_and_written_where_it_belongs() -> None:
    rows = Delta(H=8, G=4, V=64, K=128, T=2, dtype=torch.bfloat16)
    state, out = torch.zeros(6, 8, 64, 128), poisoned(2, 8, 64, dtype=torch.bfloat16)
    plan = SlotPlan.build(ints([1, 2]), ints([1, 3]), ints([-1, 4]), CPU)
    with counted() as traffic:
        gated_delta_update(state, rows.inputs, plan, out)
    assert traffic.asked_of(state) == 5 * state[0].nbytes, "one of two rows is tracked"
    assert_least(traffic, 5 * state[0].nbytes + rows.mixed.nbytes + out.nbytes, asked=1.05)


def test_a_delta_scan_keeps_the_state_and_reads_values_once() -> None:
    plan = chunk_plan([PiecePlan(0, 256, -1, 1, {128: 2}), PiecePlan(64, 128, 3, 3, {})], 64)
    rows = Delta(H=4, G=2, V=64, K=128, T=384, dtype=torch.bfloat16)
    state, out = torch.zeros(4, 4, 64, 128), poisoned(384, 4, 64, dtype=torch.bfloat16)
    with counted() as traffic:
        gated_delta_prefill(state, rows.inputs, plan, out)
    assert traffic.asked_of(state) == 4 * state[0].nbytes, "one begins, two end, one checkpoint"
    least = rows.mixed.nbytes + rows.gates.nbytes + out.nbytes + 4 * state[0].nbytes
    assert_least(traffic, least, asked=2.5)


def test_what_is_written_or_copied_moves_once() -> None:
    kv, rows = torch.zeros(9, 2, 16, 4, 128, dtype=torch.bfloat16), torch.randn(16, 4, 128).bfloat16()
    at = torch.arange(16)
    with counted() as traffic:
        kv_write(kv, rows, rows.clone(), at // 4, at)
    assert_least(traffic, 4 * rows.nbytes, asked=1.01)
    turned, angles = torch.randn(16, 5, 128).bfloat16(), torch.randn(16, 64)
    with counted() as traffic:
        rope(turned, angles, angles.clone())
    assert_least(traffic, 2 * turned.nbytes + 2 * angles.nbytes, asked=1.01)
    memory = torch.zeros(6, 64 * 1024, dtype=torch.uint8)
    with counted() as traffic:
        slot_copy(memory, memory, torch.tensor([[1, 2], [3, 4]]))
    assert_least(traffic, 4 * memory[0].nbytes, asked=1.01)


@pytest.mark.parametrize(
    ("filters", "asked"),
    [({}, 1.02), ({"top_k": 20, "top_p": 0.95}, 2.9), ({"top_p": 0.9}, 2.3), ({"min_p": 0.05}, 2.02)][
        : 4 if LARGE else 2
    ],
)
def test_logits_come_from_memory_once(filters: dict[str, float], asked: float) -> None:
    """Allow one further read, from the cache where it has room, to see whether the drawn token may come.

    One row in ten or so draws a token that may not come, or one between two bounds.
    """
    n, vocabulary = 8, 8192
    defaults = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    without = dict.fromkeys(("repetition", "presence", "frequency"), 0.0)
    rows = {name: torch.full((n,), value) for name, value in (defaults | without | filters).items()}
    chosen = SampleParameters(
        **(rows | {"top_k": rows["top_k"].to(torch.int32)}),
        counts_row=torch.full((n,), -1, dtype=torch.int32),
        words=torch.tensor([seed_words(seed) for seed in range(n)], dtype=torch.int32),
    )
    none = PenaltyCounts(
        torch.zeros(1, vocabulary, dtype=torch.int32), torch.zeros(1, vocabulary, dtype=torch.bool)
    )
    logits = 4 * torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(1))
    with counted() as traffic:
        sample(logits, chosen, none, torch.zeros(n, dtype=torch.int32))
    assert_least(traffic, logits.nbytes, asked=asked)


@pytest.mark.parametrize(("n", "k", "asked"), [(4, 2, 1.05), *([(96, 3, 1.6)] if LARGE else [])])
def test_weights_of_experts_come_from_memory_once_if_they_are_hit(n: int, k: int, asked: float) -> None:
    batch = ExpertBatch(n, E=9, k=k, d=256, f=128, dtype=torch.bfloat16, shared_f=256)
    batch.experts[:, 0] = 7
    hit, one = len(batch.experts.unique()), batch.gate_up[0].nbytes + batch.down[0].nbytes
    assert batch.shared is not None
    weights = hit * one + batch.shared.gate_up.nbytes + batch.shared.down.nbytes
    inner, parts = n * (k * 128 + 256) * 2, n * (k + 1) * 256 * 4
    with counted() as traffic:
        batch.run(moe)
    assert_least(traffic, weights + 2 * (batch.hidden.nbytes + inner + parts), asked=asked)
    assert traffic.asked_of(batch.gate_up[8]) == 0, "nobody chose it"
