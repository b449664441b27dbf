"""How a plan's slots and chunks are named to a call of a mixer, or of the gated delta rule alone."""

from mamba_kernels.cpu.structures import (
    DeltaDecode,
    DeltaPrefill,
    GatedDeltaPrefill,
    GatedDeltaUpdate,
    MambaDecode,
    MambaPrefill,
)
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan

_SLOT_BYTES = 8


def name_slots(call: MambaDecode | DeltaDecode | GatedDeltaUpdate, plan: SlotPlan) -> None:
    """Where each decoding row's state is read from and written to, and what it is rounded by."""
    first, stride = plan.routes.data_ptr(), _SLOT_BYTES * plan.routes.stride(0)
    call.source, call.target, call.track = first, first + stride, first + 2 * stride
    call.noise, call.rows = plan.noise.data_ptr(), plan.routes.shape[1]


def name_pieces(call: MambaPrefill | DeltaPrefill | GatedDeltaPrefill, plan: ChunkPlan) -> None:
    """The same of pieces of prompts, and the chunks that they are cut into."""
    routes = plan.slots.routes
    call.source, call.target = routes.data_ptr(), routes.data_ptr() + _SLOT_BYTES * routes.stride(0)
    call.piece_chunk, call.chunk_start = plan.piece_chunk.data_ptr(), plan.chunk_start.data_ptr()
    call.chunk_track, call.chunk_noise = plan.chunk_track.data_ptr(), plan.chunk_noise.data_ptr()
    call.pieces = routes.shape[1]
