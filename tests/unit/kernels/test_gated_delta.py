"""The gated delta rule says what transformers' functions say, token by token and in chunks."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.gated_delta import gated_delta_prefill, gated_delta_update, reference
from mamba_kernels.slot_plan import SlotPlan
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, poisoned, strided_cache
from testmodels.delta import Delta
from testmodels.no_sync import no_sync

H, G, V, K = 4, 2, 6, 5


def theirs(rows: Delta, initial: torch.Tensor | None, function: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs [T, H, V] and the state [H, V, K], in float32 as the reference computes."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    i = rows.inputs
    log_decay = i.A * torch.nn.functional.softplus(i.a + i.dt_bias)
    out, state = getattr(qwen, function)(
        i.q[None], i.k[None], i.v[None], log_decay[None], i.b.sigmoid()[None],
        initial_state=None if initial is None else initial.transpose(1, 2)[None].float(),
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    return out[0], state[0].transpose(1, 2)


def filled() -> torch.Tensor:
    state = strided_cache(12, H, V, K)
    for slot in (1, 2, 3):
        g = torch.Generator().manual_seed(slot)
        state[slot] = torch.randn(H, V, K, generator=g, dtype=torch.float64) / 4
    return state


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100, 257])
@pytest.mark.parametrize("fresh", [True, False])
def test_prompts_of_any_length_are_theirs(length: int, fresh: bool) -> None:
    rows = Delta(H, G, V, K, length)
    state, out = filled(), poisoned(length, H, V)
    initial = None if fresh else state[1].clone()
    plan = chunk_plan([PiecePlan(0, length, -1 if fresh else 1, 5, {})], 64)
    with no_sync():
        gated_delta_prefill(state, rows.inputs, plan, out)
    for function in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        expected, final = theirs(rows, initial, function)
        torch.testing.assert_close(out, expected.double(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state[5], final.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 17, 100])
def test_prompts_with_a_decay_of_each_channel_are_theirs(length: int) -> None:
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi

    rows = Delta(H, H, V, K, length, by_channel=True)
    i, state, out = rows.inputs, filled(), poisoned(length, H, V)
    log_decay = i.A[:, None] * torch.nn.functional.softplus(i.a + i.dt_bias)
    expected, final = kimi.recurrent_kimi_delta_attention(
        i.q[None], i.k[None], i.v[None], log_decay[None], i.b.sigmoid()[None],
        initial_state=state[1].transpose(1, 2)[None].float(), output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    plan = chunk_plan([PiecePlan(0, length, 1, 5, {16: 6} if length > 16 else {})], 64)
    gated_delta_prefill(state, i, plan, out)
    torch.testing.assert_close(out, expected[0].double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[5], final[0].transpose(1, 2).double(), rtol=1e-4, atol=1e-5)
    # Tokens one by one are the same.
    step, stepped = filled(), poisoned(1, H, V)
    for token in range(length):
        routes = SlotPlan.build(ints([1 if token == 0 else 5]), ints([5]), ints([-1]), CPU)
        gated_delta_update(step, rows.part(slice(token, token + 1)).inputs, routes, stepped)
        torch.testing.assert_close(stepped[0], out[token])
    torch.testing.assert_close(step[5], state[5])


def test_a_prompt_is_its_tokens_one_by_one_and_checkpoints_are_their_states() -> None:
    length = 130
    rows = Delta(H, G, V, K, length)
    state, out = filled(), poisoned(length, H, V)
    plan = chunk_plan([PiecePlan(37, length, 2, 5, {64: 6, 90: 7, 167: 8})], 64)
    gated_delta_prefill(state, rows.inputs, plan, out)
    stepped, alone = filled(), poisoned(length, H, V)
    marks = {64 - 37: 6, 90 - 37: 7, length: 8}
    for t in range(length):
        route = (2 if t == 0 else 5, 5, marks.get(t + 1, -1))
        with no_sync():
            some = SlotPlan.build(*(ints([each]) for each in route), CPU)
            gated_delta_update(stepped, rows.part(slice(t, t + 1)).inputs, some, alone[t : t + 1])
    torch.testing.assert_close(out, alone, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state[[5, 6, 7, 8]], stepped[[5, 6, 7, 8]], rtol=1e-10, atol=1e-10)


def test_a_decode_gathers_no_more_states_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 9
    rows, plan = (
        Delta(H, G, V, K, n),
        SlotPlan.build(*(ints(range(first, first + n)) for first in (0, 0, 20)), CPU),
    )
    state = torch.randn(30, H, V, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at_once, expected = state.clone(), poisoned(n, H, V)
    gated_delta_update(at_once, rows.inputs, plan, expected)
    read: list[int] = []

    def counted(
        self: SlotPlan, cache: torch.Tensor, whole: Callable[..., torch.Tensor] = SlotPlan.read
    ) -> torch.Tensor:
        states = whole(self, cache)
        read.append(len(states))
        return states

    monkeypatch.setattr(SlotPlan, "read", counted)
    monkeypatch.setattr(reference, "GATHER_ELEMENTS", 4 * H * V * K)
    in_parts, out = state.clone(), poisoned(n, H, V)
    gated_delta_update(in_parts, rows.inputs, plan, out)
    assert read == [4, 4, 1]
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(in_parts, at_once, rtol=1e-12, atol=1e-12)


def test_rows_and_pieces_know_nothing_of_their_neighbours() -> None:
    pieces = [PiecePlan(0, 70, -1, 5, {}), PiecePlan(64, 3, 1, 1, {}), PiecePlan(10, 65, 2, 6, {20: 7})]
    plan = chunk_plan(pieces, 64)
    rows = Delta(H, G, V, K, plan.tokens)
    state, out, first = filled(), poisoned(plan.tokens, H, V), 0
    gated_delta_prefill(state, rows.inputs, plan, out)
    for piece in pieces:
        some = slice(first, first + piece.length)
        alone, own = filled(), poisoned(piece.length, H, V)
        gated_delta_prefill(alone, rows.part(some).inputs, chunk_plan([piece], 64), own)
        torch.testing.assert_close(out[some], own, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state[piece.slot_out], alone[piece.slot_out], rtol=1e-12, atol=1e-12)
        first += piece.length
    assert state[[0, 8, 9]].isnan().all()


def test_keys_that_are_all_the_same_are_solved_for() -> None:
    """The worst system: every token wants to replace what the one before wrote."""
    rows = Delta(1, 1, 4, 3, 64)
    rows.mixed[:, 3:6] = 1.0
    rows.gates[:, 1] = 40.0
    rows.A[:] = -1e-9
    state, out = strided_cache(2, 1, 4, 3), poisoned(64, 1, 4)
    gated_delta_prefill(state, rows.inputs, chunk_plan([PiecePlan(0, 64, -1, 1, {})], 64), out)
    key = torch.ones(3, dtype=torch.float64) * torch.rsqrt(torch.tensor(3.0 + 1e-6))
    torch.testing.assert_close(state[1, 0] @ key, rows.mixed[-1, 6:].double(), rtol=1e-5, atol=1e-5)
