"""A gated short convolution between its projections: one call for decoding rows, one for prompts.

See "short_conv" in README.md.
"""

import ctypes

import torch

from mamba_kernels.arguments import check, check_plan
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mixer import name_pieces, name_slots
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import ShortConvDecode, ShortConvMixer, ShortConvPrefill
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan

PARTS = 3
"""Parts of a row: b | c | v."""


class ShortConvCalls:
    """Calls for one mixer, which compute what the reference in `mamba_kernels.short_conv` does.

    `rows` are [n, b C | c C | v C], float32 or bfloat16, rows may be strided; `window` is [slabs, taps-1, C]
    in their type, dense except for the slabs, read and written at the plan's slots; `out` is [n, C] in the
    type of the rows, dense, written. Any other argument raises WrongArgument.
    """

    def __init__(self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Prepare the calls for weight [taps, C] and bias [C], float32, which they keep alive.

        Raises WrongArgument.
        """
        check("weight", weight, (None, None), dtypes=(torch.float32,), device=CPU, dense_from=0)
        taps, self._channels = weight.shape
        if bias is not None:
            check("bias", bias, (self._channels,), dtypes=(torch.float32,), device=CPU, dense_from=0)
        self._window = (None, taps - 1, self._channels)
        # Addresses do not keep objects alive; the weights must live as long as the calls.
        self._weights = weight, bias
        self._mixer = ShortConvMixer(
            conv_weight=weight.data_ptr(),
            conv_bias=None if bias is None else bias.data_ptr(),
            channels=self._channels,
            taps=taps,
        )
        self._address = ctypes.addressof(self._mixer)
        self._decode, self._prefill = library.short_conv_decode, library.short_conv_prefill

    def place(self, call: ShortConvDecode, window: torch.Tensor) -> None:
        """Set the mixer of `call`, and the windows of its layer, which have the type of the rows."""
        call.mixer, call.kind = self._address, KINDS[window.dtype]
        call.window, call.window_stride = window.data_ptr(), window.stride(0)

    def decode(self, rows: torch.Tensor, window: torch.Tensor, plan: SlotPlan, out: torch.Tensor) -> None:
        """Compute one token for each of the plan's sequences, none of them padding. Raises WrongArgument."""
        self._check(rows, window, out, plan.routes.shape[1])
        call = ShortConvDecode(projected=rows.data_ptr(), projected_stride=rows.stride(0), out=out.data_ptr())
        self.place(call, window)
        name_slots(call, plan)
        self._decode(ctypes.addressof(call))

    def prefill(self, rows: torch.Tensor, window: torch.Tensor, plan: ChunkPlan, out: torch.Tensor) -> None:
        """Compute the pieces of the plan. Raises WrongArgument."""
        self._check(rows, window, out, plan.tokens)
        call = ShortConvPrefill(mixer=self._address, out=out.data_ptr(), kind=KINDS[rows.dtype])
        call.projected, call.projected_stride = rows.data_ptr(), rows.stride(0)
        call.window, call.window_stride = window.data_ptr(), window.stride(0)
        name_pieces(call, plan)
        self._prefill(ctypes.addressof(call))

    def _check(self, rows: torch.Tensor, window: torch.Tensor, out: torch.Tensor, count: int) -> None:
        check_plan("rows", rows, count)
        check("rows", rows, (count, PARTS * self._channels), dtypes=KINDS, device=CPU, dense_from=1)
        kind = (rows.dtype,)
        check("window", window, self._window, dtypes=kind, device=CPU, dense_from=1)
        check("out", out, (count, self._channels), dtypes=kind, device=CPU, dense_from=0)
