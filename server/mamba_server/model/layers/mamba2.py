"""The Mamba2 mixer (Dao and Gu 2024): projection, convolution, recurrence, gated norm, projection.

`HybridModel` calls each layer once per step; decoding rows and prefill rows have their own kernels and share
the projections.
"""

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.cpu.mamba_prefill import MambaPrefiller
from mamba_kernels.cpu.mixer import MixerWeights, PreparedMixer
from mamba_kernels.invariant import convolution_by_tap, gated_norm_by_row, recurrence_by_token
from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan
from mamba_planner.model_config import MambaConfig
from mamba_server.model.layers.loader import Loader
from mamba_server.model.replay import ReplayPlan, decode_rows
from mamba_server.model.step_plans import StepPlans


class Mamba2Mixer:
    """Computes one Mamba2 mixer, and writes its windows and states to the cache.

    A, D and dt_bias are float32, like the states that they act on.
    """

    def __init__(self, config: MambaConfig, hidden_size: int, loader: Loader) -> None:
        self.config = config
        self.batch_invariant, self.operators = loader.batch_invariant, loader.operators
        H, inner, conv_dim = config.heads, config.inner, config.conv_dim
        self.in_proj = loader.linear("in_proj", hidden_size, inner + conv_dim + H, bias=config.proj_bias)
        self.out_proj = loader.linear("out_proj", inner, hidden_size, bias=config.out_bias)
        weight = loader.wide("conv1d.weight", conv_dim, 1, config.conv_kernel)
        self.conv_weight = weight[:, 0].t().contiguous()  # [K, C]
        self.conv_bias = loader.wide("conv1d.bias", conv_dim) if config.conv_bias else None
        self.A = -torch.exp(loader.wide("A_log", H))
        self.D = loader.wide("D", H)
        self.dt_bias = loader.wide("dt_bias", H)
        self.norm_weight = loader.tensor("norm.weight", inner) if config.gated_norm else None
        self.norm_first = config.gated_norm and config.norm_before_gate
        fused = not (loader.batch_invariant or self.norm_first)
        self.kernels = self._kernels(loader.library) if fused and loader.library is not None else None
        """C++ kernels of decode and prefill; None = operators are used: in batch-invariant mode, in which a
        token has the same bits whether it is decoded or part of a prompt, and for a norm before the gate."""

    def _kernels(self, library: Library) -> tuple[MambaDecoder, MambaPrefiller]:
        config = self.config
        mixer = PreparedMixer(
            MixerWeights(self.conv_weight, self.conv_bias, self.A, self.D, self.dt_bias, self.norm_weight),
            head_dim=config.head_dim,
            state_size=config.state_size,
            groups=config.groups,
            dt_limit=config.dt_limit,
            norm_eps=config.norm_eps,
            norm_groups=config.groups,
        )
        return MambaDecoder(library, mixer), MambaPrefiller(library, mixer)

    def __call__(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plans: StepPlans,
        ring: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d].

        `conv`, [slabs, K-1, C], and `ssm`, [slabs, H, P, N], are windows and states, which are written.
        `ring` keeps the inputs of drafts, or inputs that states lack; None = the engine has neither.
        """
        projected = self.in_proj(x)
        if self.kernels is None:
            return self.out_proj(self._by_operators(projected, conv, ssm, plans, ring))
        normed = x.new_empty(plans.tokens, self.config.inner)
        decode, prefill = self.kernels
        cut = plans.decodes
        if plans.decode is not None and plans.ring is not None:
            decode(projected[:cut], conv, ssm, plans.decode, normed[:cut], plans.ring, ring)
        elif plans.decode is not None:
            decode_rows(decode, projected[:cut], conv, ssm, plans.decode, normed[:cut], plans.replay, ring)
        for rows, plan in plans.prefill:
            prefill(projected[rows], conv, ssm, plan, normed[rows])
        return self.out_proj(normed)

    def _by_operators(
        self,
        projected: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plans: StepPlans,
        ring: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute convolution, recurrence, gate and norm with operators; return [T, H*P]."""
        config, cut, operators = self.config, plans.decodes, self.operators
        gate, inputs, dt = projected.split([config.inner, config.conv_dim, config.heads], dim=-1)
        # On a GPU the scan's sums are rounded, which halves the memory traffic. Elsewhere that saves nothing,
        # and in batch-invariant mode all devices compute alike.
        rounded = inputs.is_cuda and not self.batch_invariant
        kind = inputs.dtype if rounded else accumulator(inputs.dtype)
        y: torch.Tensor = inputs.new_empty(plans.tokens, config.heads, config.head_dim, dtype=kind)
        if self.batch_invariant:
            pieces = plans.prefill[0][1] if plans.prefill else None
            mixed = convolution_by_tap(inputs, self.conv_weight, self.conv_bias, conv, plans.decode, pieces)
            recurrence_by_token(ssm, self._scan_inputs(mixed, dt), plans.decode, pieces, y)
        else:
            if plans.decode is not None and plans.ring is not None and ring is not None:
                self._decode_with_ring(projected[:cut], conv, ssm, plans.decode, plans.ring, ring, y[:cut])
            elif plans.decode is not None:
                decode_rows(
                    self._decode, projected[:cut], conv, ssm, plans.decode, y[:cut], plans.replay, ring
                )
            for rows, plan in plans.prefill:
                mixed = operators.conv1d_prefill(inputs[rows], self.conv_weight, self.conv_bias, conv, plan)
                operators.ssd_prefill(ssm, self._scan_inputs(mixed, dt[rows]), plan, y[rows])
        norm = gated_norm_by_row if self.batch_invariant else operators.gated_norm
        return norm(y.flatten(1), gate, self.norm_weight, config.norm_eps, config.groups, self.norm_first)

    def absorb(self, conv: torch.Tensor, ssm: torch.Tensor, ring: torch.Tensor, replay: ReplayPlan) -> None:
        """Compute the inputs of accepted drafts that `ring` holds into the live slots, outside a step."""
        if self.kernels is not None:
            replay.absorb(self.kernels[0], conv, ssm, ring, ring.new_empty(0, self.config.inner))
            return
        out = ring.new_empty(0, self.config.heads, self.config.head_dim, dtype=accumulator(ring.dtype))
        replay.absorb(self._decode, conv, ssm, ring, out)

    def _decode(
        self, projected: torch.Tensor, conv: torch.Tensor, ssm: torch.Tensor, plan: SlotPlan, y: torch.Tensor
    ) -> None:
        """Decode the plan's rows with operators, up to the recurrence; `y` is [n, H, P], written."""
        config = self.config
        _, inputs, dt = projected.split([config.inner, config.conv_dim, config.heads], dim=-1)
        mixed = self.operators.conv1d_update(inputs, self.conv_weight, self.conv_bias, conv, plan)
        self.operators.state_update(ssm, self._scan_inputs(mixed, dt), plan, y)

    def _decode_with_ring(
        self,
        projected: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plan: SlotPlan,
        lanes: RingPlan,
        ring: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        """Decode as `_decode`, but write only the states that are due. Windows are small, and always written.

        `lanes` says which inputs of `ring` each state lacks. The results are written to `y`.
        """
        config = self.config
        _, inputs, dt = projected.split([config.inner, config.conv_dim, config.heads], dim=-1)
        mixed = self.operators.conv1d_update(inputs, self.conv_weight, self.conv_bias, conv, plan)
        self.operators.state_replay(ssm, self._scan_inputs(mixed, dt), plan, lanes, ring, y)

    def _scan_inputs(self, mixed: torch.Tensor, dt: torch.Tensor) -> ScanInputs:
        """Divide mixed, [n, C] = x | B | C after the convolution, into the scan's inputs; `dt` is [n, H]."""
        config = self.config
        shared = config.groups * config.state_size
        x, B, C = mixed.split([config.inner, shared, shared], dim=-1)
        return ScanInputs(
            x=x.unflatten(1, (config.heads, config.head_dim)),
            dt=dt,
            A=self.A,
            B=B.unflatten(1, (config.groups, config.state_size)),
            C=C.unflatten(1, (config.groups, config.state_size)),
            D=self.D,
            dt_bias=self.dt_bias,
            dt_limit=config.dt_limit,
        )
