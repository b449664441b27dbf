"""A mixer of the gated delta rule (Yang et al. 2024): projection, convolution, recurrence, norm, gate.

`HybridModel` calls each layer once per step; decoding rows and prefill rows have their own kernels and share
the projections.
"""

import torch

from mamba_kernels.activate import Function
from mamba_kernels.cpu.delta_mixer import DeltaWeights, GatedDeltaCalls
from mamba_kernels.cpu.library import Library
from mamba_kernels.gated_delta.inputs import DeltaInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan
from mamba_planner.model_config import GatedDeltaConfig
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.tensor_names import DeltaNames
from mamba_server.model.layers.loader import Loader, Matrix, Rows, rows_of
from mamba_server.model.replay import ReplayPlan, decode_rows
from mamba_server.model.step_plans import StepPlans


class GatedDeltaMixer:
    """Computes one mixer of the gated delta rule, and writes its windows and states to the cache.

    A and dt_bias are float32, like the states that they act on.
    """

    def __init__(self, config: GatedDeltaConfig, hidden_size: int, names: DeltaNames, loader: Loader) -> None:
        """Take the weights of one layer. Raises UnsupportedModel, WeightsError."""
        if loader.batch_invariant:
            raise UnsupportedModel(
                "there are no batch-invariant kernels for the gated delta rule of this model: serve without "
                "--batch-invariant"
            )
        self.config, self.operators = config, loader.operators
        heads = config.value_heads
        values = heads * config.value_dim
        self.widths = (config.conv_dim, values, heads, heads * config.decays)
        """Numbers of outputs: q | k | v, z, b and a."""
        self.in_proj: Rows
        if config.gate_rank is not None:
            self.in_proj = NarrowInputs(config, config.gate_rank, hidden_size, loader)
        elif names.inputs:
            parts = _parts(config)
            widths = self.widths if len(names.inputs) == len(self.widths) else (*parts, *self.widths[1:])
            by_name = dict(zip(names.inputs, widths, strict=True))
            self.in_proj = loader.join(by_name, hidden_size, bias=False)
        else:
            qkvz, ba = by_kind(config)
            projections = [
                loader.part("in_proj_qkvz", 0, len(qkvz), qkvz),
                loader.part("in_proj_ba", len(qkvz), len(ba), ba),
            ]
            matrices = _by_key_head(config, hidden_size, loader)
            self.in_proj = loader.product_of(matrices, None, parts=projections)
        self.out_proj = loader.linear(names.output, values, hidden_size, bias=False)
        weight = _convolution(config, loader)
        self.conv_weight = weight[:, 0].t().contiguous()  # [K, C]
        self.A, self.dt_bias = _decays(config, loader)
        self.norm_weight = loader.tensor(names.norm, config.value_dim)
        self.kernels = None if loader.library is None else self._kernels(loader.library)
        """C++ kernels that compute everything between the projections; None = operators are used."""

    def _kernels(self, library: Library) -> GatedDeltaCalls:
        config = self.config
        weights = DeltaWeights(self.conv_weight, self.A, self.dt_bias, self.norm_weight.float())
        return GatedDeltaCalls(
            library, weights, key_heads=config.key_heads, key_dim=config.key_dim, norm_eps=config.norm_eps,
            beta_scale=config.beta_scale,
        )  # fmt: skip

    def __call__(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plans: StepPlans,
        ring: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d].

        `conv`, [slabs, K-1, C], and `ssm`, [slabs, H, V, K], are windows and states, which are written.
        `ring` keeps the inputs of drafts, or inputs that states lack; None = the engine has neither.
        """
        projected = self.in_proj(x)
        if self.kernels is None:
            return self.out_proj(self._by_operators(projected, conv, ssm, plans, ring))
        gated = x.new_empty(plans.tokens, self.widths[1])
        cut = plans.decodes
        if plans.decode is not None and plans.ring is not None:
            rows = projected[:cut]
            self.kernels.decode(rows, conv, ssm, plans.decode, gated[:cut], plans.ring, ring)
        elif plans.decode is not None:
            decode_rows(
                self.kernels.decode, projected[:cut], conv, ssm, plans.decode, gated[:cut], plans.replay, ring
            )
        for piece, plan in plans.prefill:
            self.kernels.prefill(projected[piece], conv, ssm, plan, gated[piece])
        return self.out_proj(gated)

    def absorb(self, conv: torch.Tensor, ssm: torch.Tensor, ring: torch.Tensor, replay: ReplayPlan) -> None:
        """Compute the inputs of accepted drafts that `ring` holds into the live slots, outside a step."""
        if self.kernels is not None:
            replay.absorb(self.kernels.decode, conv, ssm, ring, ring.new_empty(0, self.widths[1]))
            return
        out = ring.new_empty(0, self.config.value_heads, self.config.value_dim)
        replay.absorb(self._decode, conv, ssm, ring, out)

    def _decode(
        self, projected: torch.Tensor, conv: torch.Tensor, ssm: torch.Tensor, plan: SlotPlan, y: torch.Tensor
    ) -> None:
        """Decode the plan's rows with operators, up to the recurrence; `y` is [n, H, V], written."""
        mixed, _, b, a = projected.split(self.widths, dim=-1)
        rows = self.operators.conv1d_update(mixed, self.conv_weight, None, conv, plan)
        self.operators.gated_delta_update(ssm, self._inputs(rows, a, b), plan, y)

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
        mixed, _, b, a = projected.split(self.widths, dim=-1)
        rows = self.operators.conv1d_update(mixed, self.conv_weight, None, conv, plan)
        self.operators.gated_delta_replay(ssm, self._inputs(rows, a, b), plan, lanes, ring, y)

    def _by_operators(
        self,
        projected: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        plans: StepPlans,
        ring: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute convolution, recurrence, norm and gate with operators; return [T, H*V]."""
        config, operators, cut = self.config, self.operators, plans.decodes
        mixed, z, b, a = projected.split(self.widths, dim=-1)
        y = projected.new_empty(plans.tokens, config.value_heads, config.value_dim)
        if plans.decode is not None and plans.ring is not None and ring is not None:
            self._decode_with_ring(projected[:cut], conv, ssm, plans.decode, plans.ring, ring, y[:cut])
        elif plans.decode is not None:
            decode_rows(self._decode, projected[:cut], conv, ssm, plans.decode, y[:cut], plans.replay, ring)
        for piece, plan in plans.prefill:
            rows = operators.conv1d_prefill(mixed[piece], self.conv_weight, None, conv, plan)
            operators.gated_delta_prefill(ssm, self._inputs(rows, a[piece], b[piece]), plan, y[piece])
        if config.gate_rank is not None:
            weight = self.norm_weight.repeat(config.value_heads)
            normed = operators.rms_norm(
                y.flatten(1), weight, config.norm_eps, None, y.dtype, config.value_heads
            )
            gate: torch.Tensor = z.contiguous()
            operators.activate(gate, Function.SIGMOID, normed)
            return gate
        # The norm is applied to each head, before the gate.
        gated: torch.Tensor = operators.gated_norm(
            y.flatten(1), z, self.norm_weight, config.norm_eps, config.value_heads, True
        )
        return gated

    def _inputs(self, mixed: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> DeltaInputs:
        """Divide the convolved rows `mixed`, [n, C] = q | k | v, into the scan's inputs.

        `a` and `b` are the inputs of decay and beta, [n, H].
        """
        config = self.config
        q, k, v = mixed.split(_parts(config), dim=-1)
        return DeltaInputs(
            q=q.unflatten(1, (config.key_heads, config.key_dim)),
            k=k.unflatten(1, (config.key_heads, config.key_dim)),
            v=v.unflatten(1, (config.value_heads, config.value_dim)),
            a=a if config.gate_rank is None else a.unflatten(1, (config.value_heads, config.key_dim)),
            b=b,
            A=self.A,
            dt_bias=self.dt_bias,
            beta_scale=config.beta_scale,
        )


class NarrowInputs:
    """Computes the inputs of a mixer whose decays and gates pass through a narrow width (Kimi-Linear)."""

    def __init__(self, config: GatedDeltaConfig, rank: int, hidden_size: int, loader: Loader) -> None:
        queries, keys, values = _parts(config)
        heads = config.value_heads
        widths = {"q_proj": queries, "k_proj": keys, "v_proj": values, "b_proj": heads}
        self._first = loader.join({**widths, "g_a_proj": rank, "f_a_proj": rank}, hidden_size, bias=False)
        self._gate = loader.linear("g_b_proj", rank, values, bias=False)
        self._decay = loader.linear("f_b_proj", rank, heads * config.decays, bias=False)
        self._widths = (config.conv_dim, heads, rank, rank)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return q | k | v, z, b and a side by side for x: [T, d]."""
        mixed, b, gate, decay = self._first(x).split(self._widths, 1)
        return torch.cat((mixed, self._gate(gate), b, self._decay(decay)), 1)


def _decays(config: GatedDeltaConfig, loader: Loader) -> tuple[torch.Tensor, torch.Tensor]:
    """Load the rates [H], negative, and biases [H] or [H, K] of the decays."""
    heads, decays = config.value_heads, config.decays
    bias = loader.wide("dt_bias", heads * decays)
    if decays == 1:
        return -torch.exp(loader.wide("A_log", heads)), bias
    # Published files hold the rates in the shape in which they are multiplied.
    shape = (heads,) if loader.rows("A_log") == heads > 1 else (1, 1, heads, 1)
    return -torch.exp(loader.wide("A_log", *shape).flatten()), bias.view(heads, decays)


def _parts(config: GatedDeltaConfig) -> list[int]:
    """Return the widths of q, k and v."""
    keys = config.key_heads * config.key_dim
    return [keys, keys, config.value_heads * config.value_dim]


def _convolution(config: GatedDeltaConfig, loader: Loader) -> torch.Tensor:
    """Load the weight [C, 1, K] of the convolution, which some checkpoints divide into three tensors."""
    names = [f"{part}_conv1d.weight" for part in "qkv"]
    rows = [loader.rows(name) for name in names]
    if not any(rows):
        return loader.wide("conv1d.weight", config.conv_dim, 1, config.conv_kernel)
    # Published files divide it into q, k and v, transformers writes three equal parts under the same names.
    widths = rows if sum(rows) == config.conv_dim else _parts(config)
    return torch.cat(
        [loader.wide(name, width, 1, config.conv_kernel) for name, width in zip(names, widths, strict=True)]
    )


def _by_key_head(config: GatedDeltaConfig, hidden_size: int, loader: Loader) -> list[Matrix]:
    """Load both input projections, whose rows are grouped by key head, in our order."""
    heads = config.value_heads
    qkvz = loader.matrix("in_proj_qkvz.weight", config.conv_dim + heads * config.value_dim, hidden_size)
    ba = loader.matrix("in_proj_ba.weight", 2 * heads, hidden_size)
    qkvz_rows, ba_rows = by_kind(config)
    parts = [rows_of(qkvz, qkvz_rows), rows_of(ba, ba_rows)]
    if isinstance(qkvz, torch.Tensor):
        give_back(qkvz)
    return parts


def by_kind(config: GatedDeltaConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of rows of q | k | v | z and of b | a in the checkpoint, which groups by key head."""
    shared = config.value_heads // config.key_heads
    values = shared * config.value_dim
    widths = (config.key_dim, config.key_dim, values, values)
    return _group_order(config.key_heads, widths), _group_order(config.key_heads, (shared, shared))


def _group_order(groups: int, widths: tuple[int, ...]) -> torch.Tensor:
    """Return the order that regroups rows [groups, sum of widths] by width: [each width, groups]."""
    rows = torch.arange(groups * sum(widths)).view(groups, -1)
    return torch.cat([part.flatten() for part in rows.split(widths, dim=1)])
