"""The choice of experts for each row, in one call after the product that scores them."""

import ctypes

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, PackedLinear, PackedWeight
from mamba_kernels.cpu.structures import Router
from mamba_kernels.moe.routing import Routing


class ExpertRouter:
    """Chooses the experts of each row: a product with a router's weight, then `mamba_kernels.moe.route`.

    Both are computed in float32.
    """

    def __init__(
        self, library: Library, weight: PackedWeight, routing: Routing, correction: torch.Tensor | None
    ) -> None:
        """Prepare the call that chooses the experts of rows.

        `weight` is [E, d] float32; `correction` is [E] float32, added to the scores for the choice alone.
        """
        experts = weight.outputs
        if correction is not None:
            check("correction", correction, (experts,), dtypes=(torch.float32,), device=CPU)
        self._run = library.route
        self._linear, self._kept, self._top_k = PackedLinear(library, weight, None), correction, routing.top_k
        self.call = Router(
            linear=self._linear.address,
            correction=None if correction is None else correction.data_ptr(),
            experts=experts,
            top_k=routing.top_k,
            groups=routing.groups,
            kept_groups=routing.kept_groups,
            sigmoid=routing.scores == "sigmoid",
            renormalise=routing.renormalise,
            scale=routing.scale,
        )
        self._address = ctypes.addressof(self.call)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts of each row, [T, k] int32, best first, and their weights, [T, k] float32.

        `x` is [T, d]. Raises WrongArgument.
        """
        logits = self._linear(x)
        experts = torch.empty(len(x), self._top_k, dtype=torch.int32)
        weights = torch.empty(len(x), self._top_k)
        self._run(self._address, logits.data_ptr(), len(x), experts.data_ptr(), weights.data_ptr())
        return experts, weights
