"""A mixture of experts in one call, in which each expert's packed weights are read once."""

import ctypes
from collections.abc import Sequence

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS, JoinedMatrix, PackedLayers, PackedLinear, PackedMatrix
from mamba_kernels.cpu.structures import IDENTITY, RELU_SQUARED, Experts, LinearLayer
from mamba_kernels.moe.activation import Activation

Matrices = tuple[PackedMatrix | JoinedMatrix, PackedMatrix | JoinedMatrix]
"""Both matrices of one expert: [2 f or f, d], the gate first, and [d_out, f]."""


class PackedExperts:
    """Computes a mixture of experts in one layer, in one call of the C++ kernels.

    The experts all have the same sizes. A shared expert, if there is one, computes every row.
    """

    def __init__(
        self,
        library: Library,
        experts: Sequence[Matrices],
        activation: Activation,
        shared: Matrices | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> None:
        """Prepare the call for these experts. Raises WrongArgument.

        There is at least one in `experts`. The expert `shared` may have another inner size, and is weighted
        by the sigmoid of a row's product with `shared_gate`, [d] float32, or by 1 if that is None.
        """
        if shared_gate is not None:
            check(
                "shared_gate", shared_gate, (experts[0][0].inputs,), dtypes=(torch.float32,), device=CPU,
                dense_from=0,
            )  # fmt: skip
        self._run, self._library = library.moe, library
        self._kept = list(experts) if shared is None else [*experts, shared]
        self._shared_gate = shared_gate
        gated = activation is Activation.GATED_SILU
        first = IDENTITY if gated else RELU_SQUARED
        count = len(experts)
        # The layers of the shared expert follow those of the others.
        self._layers = [
            (PackedLayers(up, None, first), PackedLayers(down, None, IDENTITY)) for up, down in self._kept
        ]
        self._gate_up = (LinearLayer * len(self._kept))(*(up.first for up, _ in self._layers))
        self._down = (LinearLayer * len(self._kept))(*(down.first for _, down in self._layers))
        self.call = Experts(
            gate_up=ctypes.addressof(self._gate_up),
            down=ctypes.addressof(self._down),
            shared_gate_up=None if shared is None else ctypes.addressof(self._gate_up[count]),
            shared_down=None if shared is None else ctypes.addressof(self._down[count]),
            shared_gate=None if shared_gate is None else shared_gate.data_ptr(),
            experts=count,
            gated=gated,
            kind=KINDS[experts[0][0].dtype],
        )
        self._address = ctypes.addressof(self.call)

    def products(self) -> list[tuple[PackedLinear, PackedLinear]]:
        """Return both products of each expert, without the activation; the shared expert's come last."""
        return [
            (PackedLinear(self._library, up, None), PackedLinear(self._library, down, None))
            for up, down in self._kept
        ]

    def __call__(self, hidden: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Compute the weighted sum of the experts of each row, [n, d_out].

        `hidden` is [n, d], rows may be strided, in the type of the weights; `experts` are [n, k] int32, -1 =
        none, and `weights` are [n, k] float32, as `route` returns them. A row has the same bits alone and
        among others, and with any number of threads. Raises WrongArgument.
        """
        up, down = self._kept[0]
        if hidden.dtype is not down.dtype or hidden.stride(-1) != 1:
            hidden = hidden.to(down.dtype).contiguous()
        experts, weights = experts.contiguous(), weights.contiguous()
        check("hidden", hidden, (None, up.inputs), device=CPU)
        check("experts", experts, (len(hidden), None), dtypes=(torch.int32,), device=CPU)
        check("weights", weights, experts.shape, dtypes=(torch.float32,), device=CPU)
        out = hidden.new_empty(len(hidden), down.outputs)
        call = self.call
        call.hidden, call.hidden_stride = hidden.data_ptr(), hidden.stride(0)
        call.chosen, call.weights = experts.data_ptr(), weights.data_ptr()
        call.out, call.rows, call.top_k = out.data_ptr(), len(hidden), experts.shape[1]
        self._run(self._address)
        return out
