"""One token of a Mamba2 mixer between its projections, in one call: see the derivation in README.md."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import PreparedMixer, cached_at, read_and_write
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.cpu.structures import MambaDecode
from mamba_kernels.slot_plan import SlotPlan


class MambaDecoder:
    """The call for one mixer."""

    def __init__(self, library: Library, mixer: PreparedMixer) -> None:
        self._run = library.mamba_decode
        self._mixer = mixer
        self._call = MambaDecode(mixer=mixer.address)
        self._address = ctypes.addressof(self._call)

    def place(self, call: MambaDecode, window: torch.Tensor, state: torch.Tensor) -> None:
        """Make `call` one of this mixer, with the windows and states of its layer, which have the rows' type
        and one that states may have."""
        call.mixer = self._mixer.address
        call.kind = KINDS[window.dtype]
        cached_at(call, window, state)

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
        written as the plan says (float16 by stochastic rounding); out: [n, H*P], dense, written.
        Raises WrongArgument.
        """
        call = self._call
        self._mixer.check(projected, window, state, out, plan.routes.shape[1])
        read_and_write(call, projected, window, state)
        routes = plan.routes.data_ptr()
        stride = 8 * plan.routes.stride(0)
        call.source, call.target, call.track = routes, routes + stride, routes + 2 * stride
        call.noise, call.out, call.rows = plan.noise.data_ptr(), out.data_ptr(), len(projected)
        self._run(self._address)
