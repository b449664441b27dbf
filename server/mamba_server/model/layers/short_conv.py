"""A mixer of a gated short convolution: projection to two gates and the input, convolution, projection.

`HybridModel` calls each layer once per step; decoding rows and prefill rows have their own kernels and share
the projections. The only state is the window of the convolution.
"""

import torch

from mamba_kernels.cpu.short_conv import PARTS, ShortConvCalls
from mamba_kernels.invariant import convolution_by_tap
from mamba_kernels.slot_plan import SlotPlan
from mamba_planner.model_config import ShortConvConfig
from mamba_server.model.layers.loader import Loader
from mamba_server.model.replay import ReplayPlan, decode_rows
from mamba_server.model.step_plans import StepPlans


class ShortConvMixer:
    """Computes one gated short convolution, and writes its windows to the cache."""

    def __init__(self, config: ShortConvConfig, hidden_size: int, loader: Loader) -> None:
        self.channels = channels = config.channels
        self.operators, self.batch_invariant = loader.operators, loader.batch_invariant
        self.in_proj = loader.linear("in_proj", hidden_size, PARTS * channels, bias=config.bias)
        self.out_proj = loader.linear("out_proj", channels, hidden_size, bias=config.bias)
        weight = loader.wide("conv.weight", channels, 1, config.conv_kernel)
        self.weight = weight[:, 0].t().contiguous()  # [K, C]
        self.bias = loader.wide("conv.bias", channels) if config.bias else None
        self.kernels = None
        """C++ kernels that compute everything between the projections; None = operators are used, as in
        batch-invariant mode."""
        if loader.library is not None and not loader.batch_invariant:
            self.kernels = ShortConvCalls(loader.library, self.weight, self.bias)

    def __call__(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plans: StepPlans,
        ring: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d].

        `conv`, [slabs, K-1, C], are the windows, which are written; `ssm`, [slabs, 0, 0, 0], is empty. `ring`
        keeps the inputs of drafts; None = the engine has no drafts.
        """
        rows = self.in_proj(x)
        if self.batch_invariant:
            return self.out_proj(self._by_tap(rows, conv, plans))
        out = x.new_empty(plans.tokens, self.channels)
        cut = plans.decodes
        if plans.decode is not None:
            decode_rows(self._decode, rows[:cut], conv, ssm, plans.decode, out[:cut], plans.replay, ring)
        for piece, plan in plans.prefill:
            if self.kernels is not None:
                self.kernels.prefill(rows[piece], conv, plan, out[piece])
                continue
            out[piece] = self.operators.short_conv_prefill(rows[piece], self.weight, self.bias, conv, plan)
        return self.out_proj(out)

    def absorb(self, conv: torch.Tensor, ssm: torch.Tensor, ring: torch.Tensor, replay: ReplayPlan) -> None:
        """Compute the inputs of accepted drafts that `ring` holds into the live slots, outside a step."""
        replay.absorb(self._decode, conv, ssm, ring, ring.new_empty(0, self.channels))

    def _decode(
        self, rows: torch.Tensor, conv: torch.Tensor, _: torch.Tensor, plan: SlotPlan, out: torch.Tensor
    ) -> None:
        """Decode the plan's rows up to the last projection; `out` is [n, C], written."""
        if self.kernels is not None:
            self.kernels.decode(rows, conv, plan, out)
        else:
            out.copy_(self.operators.short_conv_update(rows, self.weight, self.bias, conv, plan))

    def _by_tap(self, rows: torch.Tensor, conv: torch.Tensor, plans: StepPlans) -> torch.Tensor:
        b, c, x = rows.chunk(PARTS, 1)
        pieces = plans.prefill[0][1] if plans.prefill else None
        return convolution_by_tap(b * x, self.weight, self.bias, conv, plans.decode, pieces, gate=c)
