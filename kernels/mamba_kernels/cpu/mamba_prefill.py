"""Pieces of prompts in a Mamba2 mixer between its projections, in one call: see README.md."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import PreparedMixer, read_and_write
from mamba_kernels.cpu.structures import MambaPrefill
from mamba_kernels.ssd_prefill import ChunkPlan


class MambaPrefiller:
    """The call for one mixer."""

    def __init__(self, library: Library, mixer: PreparedMixer) -> None:
        self._run = library.mamba_prefill
        self._mixer = mixer
        self._call = MambaPrefill(mixer=mixer.address)
        self._address = ctypes.addressof(self._call)

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        plan: ChunkPlan,
        out: torch.Tensor,
    ) -> None:
        """out = norm(y * silu(gate)), where y comes from the convolution and the recurrence of `ScanInputs`.

        projected: [T, gate H*P | x H*P | B G*N | C G*N | dt H], T = plan.tokens, rows may be strided; window:
        [slabs, K-1, C] in the type of the rows; state: [slabs, H, P, N] float32 or float16; both dense but
        for the slabs, read and written at the plan's slots; out: [T, H*P], dense, written. Raises
        WrongArgument.
        """
        self._mixer.check(projected, window, state, out, plan.tokens)
        call, routes = self._call, plan.slots.routes
        read_and_write(call, projected, window, state)
        call.source, call.target = routes.data_ptr(), routes.data_ptr() + 8 * routes.stride(0)
        call.piece_chunk, call.chunk_start = plan.piece_chunk.data_ptr(), plan.chunk_start.data_ptr()
        call.chunk_track, call.chunk_noise = plan.chunk_track.data_ptr(), plan.chunk_noise.data_ptr()
        call.out = out.data_ptr()
        call.pieces = len(plan.piece_chunk) - 1
        self._run(self._address)
