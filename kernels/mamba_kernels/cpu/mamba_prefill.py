"""Pieces of prompts in a Mamba2 mixer between its projections, in one call; see README.md."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import PreparedMixer, name_pieces, read_and_write
from mamba_kernels.cpu.structures import MambaPrefill
from mamba_kernels.ssd_prefill import ChunkPlan


class MambaPrefiller:
    """Computes pieces of prompts in one Mamba2 mixer, in one call of the C++ kernels; writes their states."""

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
        """Compute out = norm(y * silu(gate)), where y follows from convolution and recurrence (`ScanInputs`).

        `projected` is [T, gate H*P | x H*P | B G*N | C G*N | dt H], T = plan.tokens, rows may be strided;
        `window` is [slabs, K-1, C] in the type of the rows; `state` is [slabs, H, P, N] float32 or float16;
        both are dense except for the slabs, and read and written at the plan's slots; `out` is [T, H*P],
        dense, written. Raises WrongArgument.
        """
        self._mixer.check(projected, window, state, out, plan.tokens)
        call = self._call
        read_and_write(call, projected, window, state)
        name_pieces(call, plan)
        call.out = out.data_ptr()
        self._run(self._address)
