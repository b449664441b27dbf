"""The sparse feed-forward block: a router, experts of which each row uses some, and one that all rows use.

`HybridModel` calls each block once per step; the host reads no value.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from mamba_kernels.cpu.expert_router import ExpertRouter
from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedWeight
from mamba_kernels.dispatch.operators import REFERENCE
from mamba_kernels.elementwise import sigmoid
from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.moe import Activation, ExpertWeights, Routing, SharedExpert, expert_weights
from mamba_kernels.moe.expert_weights import of_one
from mamba_planner.adapter_bank import MOST_ROWS
from mamba_planner.model_config import MoeConfig
from mamba_server.model.adapters.adapted_experts import AdaptedExperts, ExpertNames, ExpertProducts
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.tensor_names import MoeNames, TensorNames
from mamba_server.model.layers.latent_projections import LatentProjections
from mamba_server.model.layers.linear import Linear
from mamba_server.model.layers.loader import Loader, Matrix, Rows, one_matrix

log = logging.getLogger(__name__)
ACTIVATIONS = {
    (True, "silu"): Activation.GATED_SILU,
    (True, "swish"): Activation.GATED_SILU,
    (False, "relu2"): Activation.SQUARED_RELU,
}
"""Activations by whether an expert has a gate, and the activation's name in Hugging Face configurations."""
Matrices = Iterable[list[Matrix]]
"""Matrices of each expert, whose outputs follow one another: [outputs, inputs] together."""
Chosen = tuple[torch.Tensor, torch.Tensor]
"""Experts and weights of rows, as `route` returns them."""
SharedMatrices = tuple[list[Matrix], list[Matrix]]
Stacked = torch.Tensor | Fp8Matrix
"""One matrix of each expert: [E, outputs, inputs]"""


class Moe:
    """Computes one sparse feed-forward block: each row by the experts that a router chooses for it.

    The router computes in float32, since its scores are compared.
    """

    def __init__(self, config: MoeConfig, hidden_size: int, names: TensorNames, loader: Loader) -> None:
        """Take the weights. `loader` loads the tensors of the block's layer.

        Raises UnsupportedModel, WeightsError.
        """
        own = names.moe
        if own is None:
            raise UnsupportedModel("this version does not know the tensors of experts of the model's family")
        self.activation = ACTIVATIONS[config.gated, config.activation]
        self.routing = Routing(
            top_k=config.experts_per_token,
            scores="sigmoid" if config.scoring == "sigmoid" else "softmax",
            renormalise=config.normalize or config.scoring == "softmax_topk",
            scale=config.scale,
            groups=config.groups,
            kept_groups=config.groups_per_token,
        )
        corrected = own.correction and config.correction
        self.correction = loader.wide(own.correction, config.experts) if corrected else None
        router = loader.wide(own.router, config.experts, hidden_size)
        gate = loader.wide(own.shared_gate, 1, hidden_size) if own.shared_gate else None
        inner, per_inner = config.intermediate, self.activation.projections
        width = config.latent or hidden_size
        self.latent: LatentProjections | None = None
        """Projections around the routed experts; None = they read the rows that the block is given."""
        if config.latent is not None:
            self.latent = LatentProjections(config, hidden_size, names, loader)
        first, last = own.gate_up, own.down
        if own.stacked is not None and loader.has(own.stacked[0]):
            first, last = (own.stacked[0],), own.stacked[1]
        gate_up = _of_experts(first, (config.experts, per_inner * inner, width), loader)
        down = _of_experts([last], (config.experts, width, inner), loader)
        shared = _shared(config, hidden_size, own, loader)
        # In batch-invariant mode a row's bits must not depend on the number of rows.
        self.compute = (REFERENCE if loader.batch_invariant else loader.operators).moe
        self.route = loader.operators.route
        self.router: ExpertRouter | None = None
        """C++ kernel that computes scores and chooses experts; None = `scores` and `route` are used."""
        self.packed: PackedExperts | None = None
        """C++ kernel that computes all experts; None = `compute` is used, with unpacked weights."""
        self.adapted: AdaptedExperts | None = None
        """Experts with places for adapters; None = the engine has no places for changes of experts."""
        self._shared_gate = gate
        if (library := loader.library) is not None:
            self.router = ExpertRouter(library, PackedWeight(router), self.routing, self.correction)
            self.packed = self._pack(library, gate_up, down, shared, gate, loader)
        else:
            self.scores = _scores(router, gate, loader)
            self.gate_up, self.down = _stack(gate_up, loader), _stack(down, loader)
            self.shared: SharedExpert | None = None
            if shared is not None:
                self.shared = SharedExpert(loader.one_weight(shared[0]), loader.one_weight(shared[1]))
            self.gated = gate is not None
            """Whether the last score of a row is the logit of the shared expert's weight."""
        if loader.adapters is not None and loader.adapters.expert_rank:
            self.adapted = self._with_adapters(loader.adapters, names, config, hidden_size, loader)

    def _with_adapters(
        self, bank: AdapterBank, names: TensorNames, config: MoeConfig, hidden_size: int, loader: Loader
    ) -> AdaptedExperts:
        """Reserve the memory of `bank` for adapters of the block's experts."""
        own, inners = names.moe, self.activation.projections
        assert own is not None
        width = config.latent or hidden_size
        first, last = self._products(loader)
        routed = ExpertProducts(
            first[: config.experts], last[: config.experts], (width, config.intermediate, width), inners,
            (loader.factor(own.gate_up[0]), loader.factor(own.down)),
        )  # fmt: skip
        shared = None
        if len(first) > config.experts:
            products = ExpertProducts(
                first[config.experts :], last[config.experts :], (width, config.shared_intermediate, width),
                inners, (loader.factor(own.shared_gate_up[0]), loader.factor(own.shared_down)),
            )  # fmt: skip
            shared = products, tuple(map(loader.module, own.shared_gate_up)), loader.module(own.shared_down)
        return bank.adapt_experts(_expert_names(own, loader), routed, shared)

    def _products(self, loader: Loader) -> tuple[list[Rows], list[Rows]]:
        """Return the first and the last products of all experts; a shared one, if computed here, comes last.

        Raises UnsupportedModel if operators multiply by experts of fewer than 16 bits.
        """
        if self.packed is not None:
            pairs = self.packed.products()
            return [first for first, _ in pairs], [last for _, last in pairs]
        own = [(self.gate_up, self.down)]
        own += [] if self.shared is None else [(of_one(self.shared.gate_up), of_one(self.shared.down))]
        firsts, lasts = ([_ordinary(each, loader) for each in weights] for weights in zip(*own, strict=True))
        return (
            [Linear(first, None) for matrices in firsts for first in matrices],
            [Linear(last, None) for matrices in lasts for last in matrices],
        )

    def _pack(
        self,
        library: Library,
        gate_up: Matrices | Stacked,
        down: Matrices | Stacked,
        shared: SharedMatrices | None,
        gate: torch.Tensor | None,
        loader: Loader,
    ) -> PackedExperts:
        pairs = [
            (loader.pack_parts(_listed(up)), loader.pack_parts(_listed(back)))
            for up, back in zip(_each(gate_up), _each(down), strict=True)
        ]
        own = None if shared is None else (loader.pack_parts(shared[0]), loader.pack_parts(shared[1]))
        return PackedExperts(library, pairs, self.activation, own, None if gate is None else gate[0])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result [T, d] for x: [T, d]."""
        if self.latent is None:
            return self._routed(x, x)
        return self.latent.leave(x, self._routed(x, self.latent.enter(x)))

    def _routed(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the result for `rows` of the experts that the router chooses by `x`, [T, width].

        It includes the shared expert, unless `latent` has that. `rows` is `x`, or `x` narrowed by `latent`.
        """
        if self.packed is not None and self.router is not None:
            chosen = self.router(x)
            out = self.packed(rows, *chosen)
            self._change(x, rows, chosen, out)
            return out
        logits, shared = self.scores(x.to(self.scores.weight.dtype)), self.shared
        if self.gated:
            shared = None if shared is None else replace(shared, logit=logits[:, -1])
            logits = logits[:, :-1]
        experts, weights = self.route(logits, self.routing, self.correction)
        out = torch.empty_like(rows)
        self.compute(rows, experts, weights, self.gate_up, self.down, self.activation, out, shared)
        self._change(x, rows, (experts, weights), out)
        return out

    def _change(self, x: torch.Tensor, rows: torch.Tensor, chosen: Chosen, out: torch.Tensor) -> None:
        """Compute the rows of the step whose adapters change these experts; overwrite their results."""
        if self.adapted is None or (adapted := self.adapted.rows(len(x))) is None:
            return
        for first in range(0, len(adapted[0]), MOST_ROWS):
            own = torch.tensor(adapted[0][first : first + MOST_ROWS], device=x.device)
            gate = None
            if self._shared_gate is not None:
                wide = self._shared_gate.dtype
                gate = sigmoid(x[own].to(wide) @ self._shared_gate[0])
            result = self.adapted(
                rows[own], adapted[1][first : first + MOST_ROWS], chosen[0][own], chosen[1][own], gate
            )
            out[own] = result.to(out.dtype)


def _shared(config: MoeConfig, hidden_size: int, own: MoeNames, loader: Loader) -> SharedMatrices | None:
    """Return the matrices of the shared expert; None = there is none that is computed with the others."""
    inner, per_inner = config.shared_intermediate, 2 if config.gated else 1
    if not inner or config.latent is not None:
        return None
    return (
        _in_parts(own.shared_gate_up, (per_inner * inner, hidden_size), loader),
        _in_parts([own.shared_down], (hidden_size, inner), loader),
    )


def _expert_names(own: MoeNames, loader: Loader) -> ExpertNames:
    """Return the names by which adapters change the experts, in checkpoints of both forms."""
    per_expert = "{expert}" in own.down
    if own.stacked is not None:
        first, last = own.stacked
    elif per_expert:
        # The names that transformers gives to the joined matrices of such checkpoints.
        folder = own.down.partition(".{expert}")[0]
        first = f"{folder}.up_proj" if len(own.gate_up) == 1 else f"{folder}.gate_up_proj"
        last = f"{folder}.down_proj"
    else:
        first, last = own.gate_up[0], own.down
    return ExpertNames(
        tuple(map(loader.module, own.gate_up)) if per_expert else (),
        loader.module(own.down) if per_expert else "",
        loader.prefix + first,
        loader.prefix + last,
    )


def _scores(router: torch.Tensor, gate: torch.Tensor | None, loader: Loader) -> Linear:
    """Return the product that yields the experts' logits, and the logit of the shared expert's gate last.

    Without a `gate` it yields the experts' logits alone.
    """
    return loader.plain(router if gate is None else one_matrix([router, gate]), None)


def _listed(parts: list[Matrix] | torch.Tensor) -> list[Matrix]:
    return [parts] if isinstance(parts, torch.Tensor) else parts


def _each(matrices: Matrices | Stacked) -> Matrices | torch.Tensor:
    """Return the matrices of each expert, which are not FP8 where the C++ kernels compute."""
    assert not isinstance(matrices, Fp8Matrix)
    return matrices


def _ordinary(weights: ExpertWeights, loader: Loader) -> torch.Tensor:
    """Return the weights of experts for adapters. Raises UnsupportedModel unless they are ordinary."""
    if isinstance(weights, torch.Tensor):
        return weights
    form = "FP8" if isinstance(weights, Fp8Matrix) else "four bits"
    other = "serve a checkpoint whose experts are bfloat16"
    if loader.quantization != "none":
        other = f"--quantization {loader.quantization}"
    raise UnsupportedModel(
        f"experts in {form} take no adapters: leave out --max-lora-expert-rank, or {other}"
    )


def _stack(matrices: Matrices | Stacked, loader: Loader) -> ExpertWeights:
    """Return the matrices of all experts for operators."""
    if isinstance(matrices, Fp8Matrix):
        return matrices
    every: list[ExpertWeights]
    if not isinstance(matrices, torch.Tensor):
        every = [loader.one_weight(parts) for parts in matrices]
    elif loader.fits(matrices.shape[2]):
        every = [loader.fitted(matrix) for matrix in matrices]
    else:
        return matrices
    if (whole := expert_weights.stacked(every)) is not None:
        return whole
    if any(not isinstance(each, torch.Tensor) for each in every):
        # An engine writes nothing below a warning.
        log.warning(
            "experts of a layer are stored in different forms, and %d of them are held as %s",
            len(every),
            str(loader.dtype).removeprefix("torch."),
        )
    plain = [loader.widened(each) for each in every]
    joint = torch.stack(plain)
    for matrix in plain:
        give_back(matrix)
    return joint


class _OfExperts:
    """Yields the matrices of all experts, each loaded when it is packed.

    So only one expert is in memory twice.
    """

    def __init__(self, names: Sequence[str], shape: tuple[int, int, int], loader: Loader) -> None:
        self._names, self._shape, self._loader = names, shape, loader

    def __iter__(self) -> Iterator[list[Matrix]]:
        for expert in range(self._shape[0]):
            own = [name.format(expert=expert) for name in self._names]
            yield _in_parts(own, (self._shape[1], self._shape[2]), self._loader)


def _of_experts(names: Sequence[str], shape: tuple[int, int, int], loader: Loader) -> Matrices | Stacked:
    """Return the matrices of all experts; `names` contain "{expert}" if each expert has its own tensors."""
    if "{expert}" not in names[0]:
        fp8 = loader.quantization == "fp8"
        return loader.fp8(names[0], *shape) if fp8 else loader.tensor(names[0], *shape)
    return _OfExperts(names, shape, loader)


def _in_parts(names: Sequence[str], shape: tuple[int, int], loader: Loader) -> list[Matrix]:
    """Load a matrix [outputs, inputs] whose rows are in one tensor, or in equal parts in several."""
    rows, inputs = shape[0] // len(names), shape[1]
    return [loader.matrix(name, rows, inputs) for name in names]
