"""A mixer of the gated delta rule between its projections: one call for decoding rows, one for prompts.

See "gated_delta" in README.md. `GatedDelta` computes the rule alone, with the arguments of the reference.
"""

import ctypes
from dataclasses import dataclass

import torch

from mamba_kernels.arguments import check, check_plan
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import (
    STATE_KINDS,
    name_lanes,
    name_pieces,
    name_slots,
    place,
    place_ring,
    read_and_write,
)
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import DeltaDecode, DeltaMixer, DeltaPrefill
from mamba_kernels.gated_delta.inputs import LEAST_SQUARE
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.state_replay import RingPlan, delta_width


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Weights of a mixer between its projections, all float32."""

    conv_weight: torch.Tensor
    """Weights of the convolution, [K, C], C = q | k | v."""
    A: torch.Tensor
    """Rates of the decay of each head, [H], negative."""
    dt_bias: torch.Tensor
    """Bias of the decay's inputs, [H], or [H, K] if each channel of a key has a decay."""
    norm: torch.Tensor
    """Weight of the norm of each head, [V]."""


class GatedDeltaCalls:
    """Calls for one mixer: out = norm(o) * silu(z) by head, or norm(o) * sigmoid(z) with decays by channel.

    o is the result of the rule of `DeltaInputs` for the convolved rows. `projected` is [n, q G*K | k G*K | v
    H*V | z H*V | b H | a H or H*K], float32 or bfloat16, rows may be strided; `window` is [slabs, taps-1, C]
    in their type; `state` is [slabs, H, V, K] float32, bfloat16 (rounded to nearest) or float16 (rounded
    stochastically). `window` and `state` are dense except for the slabs, and are read and written at the
    plan's slots. `out` is [n, H*V] in the type of the rows, dense, written. Any other argument raises
    WrongArgument.
    """

    def __init__(
        self,
        library: Library,
        weights: DeltaWeights,
        *,
        key_heads: int,
        key_dim: int,
        norm_eps: float,
        beta_scale: float = 1.0,
    ) -> None:
        """Prepare the calls for `weights`, which they keep alive. Raises WrongArgument.

        `beta_scale` is the factor on beta, as in `DeltaInputs`.
        """
        heads, value_dim, taps = len(weights.A), len(weights.norm), len(weights.conv_weight)
        self._values = heads * value_dim
        channels = 2 * key_heads * key_dim + self._values
        by_channel = weights.dt_bias.dim() == 2
        decays = key_dim if by_channel else 1
        self._projected = channels + self._values + heads + heads * decays
        self._ring_width = delta_width(heads, value_dim, key_heads, key_dim, decays)
        self._window, self._state = (None, taps - 1, channels), (None, heads, value_dim, key_dim)
        wide = {
            "conv_weight": (weights.conv_weight, (taps, channels)),
            "A": (weights.A, (heads,)),
            "dt_bias": (weights.dt_bias, (heads, key_dim) if by_channel else (heads,)),
            "norm": (weights.norm, (value_dim,)),
        }
        for name, (tensor, shape) in wide.items():
            check(name, tensor, shape, dtypes=(torch.float32,), device=CPU, dense_from=0)
        # Addresses do not keep objects alive; the weights must live as long as the calls.
        self._weights = weights
        self._mixer = DeltaMixer(
            conv_weight=weights.conv_weight.data_ptr(),
            rate=weights.A.data_ptr(),
            step_bias=weights.dt_bias.data_ptr(),
            norm_weight=weights.norm.data_ptr(),
            norm_eps=norm_eps,
            least_square=LEAST_SQUARE,
            scale=key_dim**-0.5,
            beta_scale=beta_scale,
            heads=heads,
            key_heads=key_heads,
            value_dim=value_dim,
            key_dim=key_dim,
            taps=taps,
            decays=decays,
            sigmoid_gate=by_channel,
        )
        self._address = ctypes.addressof(self._mixer)
        self._decode, self._prefill = library.delta_decode, library.delta_prefill

    def place(
        self, call: DeltaDecode, window: torch.Tensor, state: torch.Tensor, ring: torch.Tensor | None
    ) -> None:
        """Set the mixer of `call`, and windows, states and ring of its layer.

        Windows and ring have the type of the rows; states have one of STATE_KINDS. Raises WrongArgument.
        """
        place(call, self._address, window, state)
        place_ring(call, ring, window.dtype, self._ring_width)

    def decode(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        plan: SlotPlan,
        out: torch.Tensor,
        lanes: RingPlan | None = None,
        ring: torch.Tensor | None = None,
    ) -> None:
        """Compute one token for each of the plan's sequences, none of them padding. Raises WrongArgument.

        The class describes the tensors. `ring` is [lanes, inputs, `delta_width`], dense, in the type of the
        rows. `lanes` says which of its inputs the states lack, and which rows write their states. Without
        `lanes` and `ring`, no state lacks inputs and all rows write.
        """
        self._check(projected, window, state, out, plan.routes.shape[1])
        call = DeltaDecode(mixer=self._address, out=out.data_ptr())
        name_slots(call, plan)
        read_and_write(call, projected, window, state)
        place_ring(call, ring, projected.dtype, self._ring_width)
        if lanes is not None:
            name_lanes(call, lanes)
        self._decode(ctypes.addressof(call))

    def prefill(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        plan: ChunkPlan,
        out: torch.Tensor,
    ) -> None:
        """Compute the pieces of the plan with the same bits as `GatedDelta.prefill`.

        The class describes the tensors. Raises WrongArgument.
        """
        self._check(projected, window, state, out, plan.tokens)
        call = DeltaPrefill(mixer=self._address, out=out.data_ptr())
        name_pieces(call, plan)
        read_and_write(call, projected, window, state)
        self._prefill(ctypes.addressof(call))

    def _check(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        rows: int,
    ) -> None:
        check_plan("projected", projected, rows)
        check("projected", projected, (rows, self._projected), dtypes=KINDS, device=CPU)
        kind = (projected.dtype,)
        check("window", window, self._window, dtypes=kind, device=CPU, dense_from=1)
        check("state", state, self._state, dtypes=STATE_KINDS, device=CPU, dense_from=1)
        check("out", out, (rows, self._values), dtypes=kind, device=CPU, dense_from=0)
