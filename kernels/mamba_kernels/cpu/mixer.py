"""Arguments that all calls of mixers share (rows, windows, states, plans), and a Mamba2 mixer's weights."""

import ctypes
import dataclasses

import torch

from mamba_kernels.arguments import check, check_plan
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import (
    FLOAT16,
    DeltaDecode,
    DeltaPrefill,
    GatedDeltaPrefill,
    GatedDeltaUpdate,
    MambaDecode,
    MambaPrefill,
    Mixer,
    ShortConvDecode,
    ShortConvPrefill,
    StateRing,
)
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.state_replay import RingPlan, scan_width

STATE_KINDS = {**KINDS, torch.float16: FLOAT16}
MAMBA_STATES = (torch.float32, torch.float16)
MixerCall = MambaDecode | MambaPrefill | DeltaDecode | DeltaPrefill
_SLOT_BYTES, _LANE_BYTES = 8, 4


@dataclasses.dataclass(frozen=True, slots=True)
class MixerWeights:
    """Weights of a Mamba2 mixer, without those of its two projections; all float32 except `norm`."""

    conv_weight: torch.Tensor
    """Weights of the convolution, [K, C]."""
    conv_bias: torch.Tensor | None
    """Bias of the convolution, [C]; None = it has none."""
    A: torch.Tensor
    """Rates of the decay of each head, [H], negative."""
    D: torch.Tensor
    """Weights with which a head's inputs are added to its outputs, [H]."""
    dt_bias: torch.Tensor
    """Bias of the step sizes, [H]."""
    norm: torch.Tensor | None
    """Weight of the gated norm, [H * P] in the type of the rows; None = only the gate is applied."""


class PreparedMixer:
    """Holds the C++ structure of one Mamba2 mixer, which the calls for this mixer point to.

    `address` is valid as long as this object lives.
    """

    def __init__(
        self,
        weights: MixerWeights,
        *,
        head_dim: int,
        state_size: int,
        groups: int,
        dt_limit: tuple[float, float],
        norm_eps: float,
        norm_groups: int,
    ) -> None:
        """Prepare the structure for `weights`, which it keeps alive. Raises WrongArgument.

        `groups` are the groups of heads that share B and C. `dt_limit` are the least and the largest step
        size.
        """
        heads, taps = len(weights.A), len(weights.conv_weight)
        self._inner, channels = heads * head_dim, heads * head_dim + 2 * groups * state_size
        self._projected = self._inner + channels + heads
        self.ring_width = scan_width(heads, head_dim, groups, state_size)
        """Elements of an input of a ring."""
        self._window, self._state = (None, taps - 1, channels), (None, heads, head_dim, state_size)
        _check_weights(weights, taps, channels, heads, self._inner)
        # Addresses do not keep objects alive; the weights must live as long as the call.
        self._weights = weights
        self._mixer = Mixer(
            conv_weight=weights.conv_weight.data_ptr(),
            conv_bias=None if weights.conv_bias is None else weights.conv_bias.data_ptr(),
            rate=weights.A.data_ptr(),
            skip=weights.D.data_ptr(),
            step_bias=weights.dt_bias.data_ptr(),
            norm_weight=None if weights.norm is None else weights.norm.data_ptr(),
            step_min=dt_limit[0],
            step_max=dt_limit[1],
            norm_eps=norm_eps,
            heads=heads,
            head_dim=head_dim,
            groups=groups,
            state_size=state_size,
            taps=taps,
            norm_groups=norm_groups,
        )
        self.address = ctypes.addressof(self._mixer)

    def check(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        rows: int,
    ) -> None:
        """Raise WrongArgument unless a call for `rows` rows can take these tensors."""
        norm = self._weights.norm
        check_plan("projected", projected, rows)
        kinds = KINDS if norm is None else (norm.dtype,)
        check("projected", projected, (rows, self._projected), dtypes=kinds, device=CPU)
        kind = (projected.dtype,)
        check("window", window, self._window, dtypes=kind, device=CPU, dense_from=1)
        check("state", state, self._state, dtypes=MAMBA_STATES, device=CPU, dense_from=1)
        check("out", out, (rows, self._inner), dtypes=kind, device=CPU, dense_from=0)


def _check_weights(weights: MixerWeights, taps: int, channels: int, heads: int, inner: int) -> None:
    wide = {
        "conv_weight": (weights.conv_weight, (taps, channels)),
        "conv_bias": (weights.conv_bias, (channels,)),
        "A": (weights.A, (heads,)),
        "D": (weights.D, (heads,)),
        "dt_bias": (weights.dt_bias, (heads,)),
    }
    for name, (tensor, shape) in wide.items():
        if tensor is not None:
            check(name, tensor, shape, dtypes=(torch.float32,), device=CPU, dense_from=0)
    if weights.norm is not None:
        check("norm", weights.norm, (inner,), dtypes=KINDS, device=CPU)


def read_and_write(
    call: MixerCall, projected: torch.Tensor, window: torch.Tensor, state: torch.Tensor
) -> None:
    """Write into `call` the addresses of the rows that it reads, and of the states that it updates."""
    call.projected, call.projected_stride = projected.data_ptr(), projected.stride(0)
    call.kind = KINDS[projected.dtype]
    _set_cache(call, window, state)


def place(call: MixerCall, mixer: int, window: torch.Tensor, state: torch.Tensor) -> None:
    """Write the address `mixer`, and the windows and states of its layer, into `call`.

    Windows have the type of the rows; states have one of STATE_KINDS.
    """
    call.mixer, call.kind = mixer, KINDS[window.dtype]
    _set_cache(call, window, state)


def name_slots(call: MambaDecode | DeltaDecode | GatedDeltaUpdate | ShortConvDecode, plan: SlotPlan) -> None:
    """Write into `call` the addresses of the plan's slots, and of words that round float16 states, if any."""
    first, stride = plan.routes.data_ptr(), _SLOT_BYTES * plan.routes.stride(0)
    call.source, call.target, call.track = first, first + stride, first + 2 * stride
    call.rows = plan.routes.shape[1]
    if not isinstance(call, ShortConvDecode):
        call.noise = plan.noise.data_ptr()


def place_ring(
    call: MambaDecode | DeltaDecode, ring: torch.Tensor | None, kind: torch.dtype, width: int
) -> None:
    """Write into `call` the address of a layer's ring; None = no state lacks inputs.

    `ring` is [lanes, inputs, width], dense, of type `kind`. Raises WrongArgument.
    """
    call.ring = StateRing()
    if ring is not None:
        check("ring", ring, (None, None, width), dtypes=(kind,), device=CPU, dense_from=0)
        call.ring.inputs, call.ring.width, call.ring.lane_inputs = ring.data_ptr(), width, ring.shape[1]


def name_lanes(call: MambaDecode | DeltaDecode, lanes: RingPlan) -> None:
    """Write into `call` what its rows do with their lanes of the ring. Raises WrongArgument."""
    rows = lanes.device_rows
    check("lanes", rows, (3, call.rows), dtypes=(torch.int32,), device=CPU)
    first, stride = rows.data_ptr(), _LANE_BYTES * rows.stride(0)
    call.ring.lane, call.ring.waiting, call.ring.writes = first, first + stride, first + 2 * stride


def name_pieces(
    call: MambaPrefill | DeltaPrefill | GatedDeltaPrefill | ShortConvPrefill, plan: ChunkPlan
) -> None:
    """Write into `call` the addresses of the plan's slots and chunks, for pieces of prompts."""
    routes = plan.slots.routes
    call.source, call.target = routes.data_ptr(), routes.data_ptr() + _SLOT_BYTES * routes.stride(0)
    call.piece_chunk, call.chunk_start = plan.piece_chunk.data_ptr(), plan.chunk_start.data_ptr()
    call.chunk_track, call.pieces = plan.chunk_track.data_ptr(), routes.shape[1]
    if not isinstance(call, ShortConvPrefill):
        call.chunk_noise = plan.chunk_noise.data_ptr()


def _set_cache(call: MixerCall, window: torch.Tensor, state: torch.Tensor) -> None:
    call.window, call.window_stride = window.data_ptr(), window.stride(0)
    call.state, call.state_stride = state.data_ptr(), state.stride(0)
    call.state_kind = STATE_KINDS[state.dtype]
