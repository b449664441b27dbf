"""The gated delta rule: one call for decoding rows and one for pieces of prompts; see README.md."""

import ctypes

import torch

from mamba_kernels.arguments import check, check_plan
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import STATE_KINDS, name_pieces, name_slots
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import (
    DeltaRows,
    GatedDeltaPrefill,
    GatedDeltaUpdate,
)
from mamba_kernels.gated_delta.arguments import check_delta
from mamba_kernels.gated_delta.inputs import LEAST_SQUARE, DeltaInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan


class GatedDelta:
    """Computes the gated delta rule by the C++ kernels, with the arguments of the reference.

    `state` is [slabs, H, V, K] float32, bfloat16 (rounded to nearest) or float16 (rounded stochastically), K
    dense, read and written at the plan's slots; `inputs` are float32 or bfloat16, all of one type except A
    and dt_bias, which are float32; `out` is [T, H, V] in their type, V dense, written. Any other argument
    raises WrongArgument.
    """

    def __init__(self, library: Library) -> None:
        self._update, self._prefill = library.gated_delta_update, library.gated_delta_prefill

    def update(self, state: torch.Tensor, inputs: DeltaInputs, plan: SlotPlan, out: torch.Tensor) -> None:
        """Compute one token for each of the plan's states; a state with target -1 is not stored.

        Raises WrongArgument.
        """
        call = GatedDeltaUpdate(delta=_rows(state, inputs, out))
        check_plan("v", inputs.v, plan.routes.shape[1])
        name_slots(call, plan)
        self._update(ctypes.addressof(call))

    def prefill(self, state: torch.Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
        """Compute the pieces of the plan. Raises WrongArgument.

        Up to 32 tokens of a chunk are solved for together, counted from its start, so that results depend on
        where chunks begin and not on how a prompt was cut into pieces.
        """
        call = GatedDeltaPrefill(delta=_rows(state, inputs, out))
        check_plan("v", inputs.v, plan.tokens)
        name_pieces(call, plan)
        self._prefill(ctypes.addressof(call))


def _rows(state: torch.Tensor, inputs: DeltaInputs, out: torch.Tensor) -> DeltaRows:
    check("state", state, state.shape, dtypes=STATE_KINDS, device=CPU)
    _, H, G, V, K = check_delta(state, inputs, out, states=tuple(STATE_KINDS))
    check("v", inputs.v, inputs.v.shape, dtypes=KINDS)
    for name, tensor in (("a", inputs.a), ("b", inputs.b), ("out", out)):
        check(name, tensor, tensor.shape, dtypes=(inputs.v.dtype,))
    for name, tensor in (("A", inputs.A), ("dt_bias", inputs.dt_bias)):
        check(name, tensor, tensor.shape, dtypes=(torch.float32,))
    q, k, v, a, b = inputs.q, inputs.k, inputs.v, inputs.a, inputs.b
    return DeltaRows(
        q=q.data_ptr(), q_row=q.stride(0), q_head=q.stride(1),
        k=k.data_ptr(), k_row=k.stride(0), k_head=k.stride(1),
        v=v.data_ptr(), v_row=v.stride(0), v_head=v.stride(1),
        a=a.data_ptr(), a_row=a.stride(0), b=b.data_ptr(), b_row=b.stride(0),
        rate=inputs.A.data_ptr(), step_bias=inputs.dt_bias.data_ptr(),
        state=state.data_ptr(), state_slab=state.stride(0), state_head=state.stride(1),
        state_row=state.stride(2),
        out=out.data_ptr(), out_row=out.stride(0), out_head=out.stride(1),
        least_square=LEAST_SQUARE, scale=K**-0.5, beta_scale=inputs.beta_scale,
        heads=H, key_heads=G, value_dim=V, key_dim=K,
        kind=KINDS[v.dtype], state_kind=STATE_KINDS[state.dtype], decays=K if inputs.by_channel else 1,
    )  # fmt: skip
