"""One token of a Mamba2 mixer between its projections, in one call: see the derivation in README.md."""

import ctypes
import dataclasses

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.cpu.structures import FLOAT16, MambaDecode
from mamba_kernels.slot_plan import SlotPlan

STATE_KINDS = {torch.float32: KINDS[torch.float32], torch.float16: FLOAT16}


@dataclasses.dataclass(frozen=True, slots=True)
class MixerWeights:
    """What a mixer has between its projections. Wide ones are float32."""

    conv_weight: torch.Tensor
    """[K, C]"""
    conv_bias: torch.Tensor | None
    """[C]"""
    A: torch.Tensor
    """[H] negative"""
    D: torch.Tensor
    """[H]"""
    dt_bias: torch.Tensor
    """[H]"""
    norm: torch.Tensor | None
    """[H * P] in the type of the rows; None = the gate alone."""


class MambaDecoder:
    """The call for one mixer."""

    def __init__(
        self,
        library: Library,
        weights: MixerWeights,
        *,
        head_dim: int,
        state_size: int,
        groups: int,
        dt_limit: tuple[float, float],
        norm_eps: float,
        norm_groups: int,
    ) -> None:
        self._run = library.mamba_decode
        # Addresses do not keep what lies there; the weights must live as long as the call.
        self._weights = weights
        self._call = MambaDecode(
            conv_weight=weights.conv_weight.data_ptr(),
            conv_bias=None if weights.conv_bias is None else weights.conv_bias.data_ptr(),
            rate=weights.A.data_ptr(),
            skip=weights.D.data_ptr(),
            step_bias=weights.dt_bias.data_ptr(),
            norm_weight=None if weights.norm is None else weights.norm.data_ptr(),
            step_min=dt_limit[0],
            step_max=dt_limit[1],
            norm_eps=norm_eps,
            heads=len(weights.A),
            head_dim=head_dim,
            groups=groups,
            state_size=state_size,
            taps=len(weights.conv_weight),
            norm_groups=norm_groups,
        )
        self._address = ctypes.addressof(self._call)

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        plan: SlotPlan,
        out: torch.Tensor,
    ) -> None:
        """out = norm(y * silu(gate)), where y comes from the convolution and the recurrence of `ScanInputs`.

        projected: [n, gate H*P | x H*P | B G*N | C G*N | dt H], rows may be strided; window: [slabs, K-1, C]
        in the type of the rows; state: [slabs, H, P, N] float32 or float16; both dense but for the slabs, and
        written as the plan says; out: [n, H*P], dense, written.
        """
        call = self._call
        call.projected, call.projected_stride = projected.data_ptr(), projected.stride(0)
        call.window, call.window_stride = window.data_ptr(), window.stride(0)
        call.state, call.state_stride = state.data_ptr(), state.stride(0)
        routes = plan.routes.data_ptr()
        stride = 8 * plan.routes.stride(0)
        call.source, call.target, call.track = routes, routes + stride, routes + 2 * stride
        call.out, call.rows = out.data_ptr(), len(projected)
        call.kind, call.state_kind = KINDS[projected.dtype], STATE_KINDS[state.dtype]
        self._run(self._address)
