"""One token of a Mamba2 mixer between its projections, in one call; README.md has the derivation."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import (
    PreparedMixer,
    name_lanes,
    name_slots,
    place,
    place_ring,
    read_and_write,
)
from mamba_kernels.cpu.structures import MambaDecode
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan


class MambaDecoder:
    """Computes one token of each sequence in one Mamba2 mixer, in one C++ call; writes their states."""

    def __init__(self, library: Library, mixer: PreparedMixer) -> None:
        self._run = library.mamba_decode
        self._mixer = mixer
        self._call = MambaDecode(mixer=mixer.address)
        self._address = ctypes.addressof(self._call)

    def place(
        self, call: MambaDecode, window: torch.Tensor, state: torch.Tensor, ring: torch.Tensor | None
    ) -> None:
        """Write the address of the mixer, and of windows, states and ring of its layer, into `call`.

        Windows and ring have the type of the rows; states have one of STATE_KINDS. Raises WrongArgument.
        """
        place(call, self._mixer.address, window, state)
        place_ring(call, ring, window.dtype, self._mixer.ring_width)

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        state: torch.Tensor,
        plan: SlotPlan,
        out: torch.Tensor,
        lanes: RingPlan | None = None,
        ring: torch.Tensor | None = None,
    ) -> None:
        """Compute out = norm(y * silu(gate)), where y follows from convolution and recurrence (`ScanInputs`).

        `projected` is [n, gate H*P | x H*P | B G*N | C G*N | dt H], rows may be strided; `window` is [slabs,
        K-1, C] in the type of the rows; `state` is [slabs, H, P, N] float32 or float16; both are dense except
        for the slabs and written at the plan's slots (float16 by stochastic rounding); `out` is [n, H*P],
        dense, written. `ring` is [lanes, inputs, `scan_width`], dense, in the type of the rows. `lanes` says
        which of its inputs the states lack, and which rows write their states. Without `lanes` and `ring`,
        no state lacks inputs and all rows write. Raises WrongArgument.
        """
        call = self._call
        self._mixer.check(projected, window, state, out, plan.routes.shape[1])
        read_and_write(call, projected, window, state)
        name_slots(call, plan)
        place_ring(call, ring, projected.dtype, self._mixer.ring_width)
        if lanes is not None:
            name_lanes(call, lanes)
        call.out = out.data_ptr()
        self._run(self._address)
