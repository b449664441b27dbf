"""Transformer blocks that several layers share, each before the mixer of a layer (Zamba2).

A block reads the rows of its layer beside those of the embedding. Its result is added to the rows that the
mixer reads, and not to the residual stream. `HybridModel` calls each layer once per step.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from mamba_kernels.fp8_pages import Pages
from mamba_planner.model_config import AttentionConfig, MlpConfig, SharedConfig
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.tensor_names import SharedNames
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.loader import Loader, Rows
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.layers.mlp import activation
from mamba_server.model.step_plans import StepPlans


class ChangedProduct:
    """Multiplies rows by a matrix, and adds a change of low rank to each part of the result."""

    def __init__(self, base: Rows, changes: list[tuple[Rows, Rows]]) -> None:
        """Take the product and the two products of each change; parts follow one another."""
        self._base, self._changes = base, changes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the changed product [T, outputs] of x: [T, inputs]."""
        result, start = self._base(x), 0
        for first, second in self._changes:
            change = second(first(x))
            result[:, start : start + change.shape[1]] += change
            start += change.shape[1]
        return result


class _Weights:
    """Weights of one shared transformer block, without the changes that each of its layers has for itself."""

    def __init__(
        self,
        attention: AttentionConfig,
        mlp: MlpConfig,
        hidden_size: int,
        eps: float,
        names: SharedNames,
        loader: Loader,
    ) -> None:
        """Take the weights through `loader`, which loads the layer whose tensors are the block's."""
        self.norm = loader.norm(names.norm, 2 * hidden_size, eps)
        self.attention = Attention(
            attention, hidden_size, loader.at(names.attention), eps, inputs=2 * hidden_size
        )
        self.norm_between = loader.norm(names.norm_between, hidden_size, eps)
        self.gate_up = loader.linear(names.gate_up, hidden_size, 2 * mlp.intermediate, bias=mlp.bias)
        # Rows of a step of drafts have the bits that they would have alone, as the C++ products give them.
        self.in_float32 = loader.library is not None
        self.activation = activation(
            mlp.activation,
            loader.operators.activate,
            batch_invariant=loader.batch_invariant or self.in_float32,
        )
        self.down = loader.linear(names.down, mlp.intermediate, hidden_size, bias=mlp.bias)

    def activate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return function(gate) * up; gate may be overwritten."""
        if not self.in_float32:
            return self.activation(gate, up)
        return self.activation(gate.float(), up.float()).to(gate.dtype)


class SharedUse:
    """Computes a shared transformer block in one layer, with this layer's changes and last projection."""

    def __init__(
        self, weights: _Weights, attention: Attention, gate_up: Rows, down: Rows, linear: Rows
    ) -> None:
        self._weights, self.attention = weights, attention
        self._gate_up, self._down, self._linear = gate_up, down, linear

    def __call__(
        self,
        x: torch.Tensor,
        embedded: torch.Tensor,
        kv: Pages,
        plans: StepPlans,
        turns: Turns | None,
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d].

        `embedded` are the rows of the embedding, [T, d]. `kv` is written as in `Attention`.
        """
        weights = self._weights
        attended = self.attention(weights.norm(torch.cat((x, embedded), 1), None), kv, plans, turns)
        gate, up = self._gate_up(weights.norm_between(attended, None)).chunk(2, 1)
        return self._linear(self._down(weights.activate(gate, up)))


class SharedMamba:
    """A layer's own Mamba2 mixer, together with the shared transformer block that is computed before it."""

    def __init__(self, shared: SharedUse, mamba: Mamba2Mixer) -> None:
        self.shared, self.mamba = shared, mamba

    @property
    def attention(self) -> Attention:
        return self.shared.attention


class SharedTransformers:
    """Loads the transformer blocks that layers of a model share, and gives each layer its use of one."""

    def __init__(
        self,
        config: SharedConfig,
        attention: AttentionConfig,
        mlp: MlpConfig,
        hidden_size: int,
        eps: float,
        names: SharedNames,
        layers: list[Loader],
    ) -> None:
        """Take the weights of all blocks. `layers` load the layers that use one, in order.

        Checkpoints hold the tensors of a block in the layer that uses it first, or in every one.
        """
        self._config, self._names, self._hidden_size = config, names, hidden_size
        self._inner = mlp.intermediate
        self._layers = layers
        # Adapters of users have places in each use, and none in what the uses share.
        plain = [replace(layer, adapters=None) for layer in layers]
        blocks = min(config.blocks, len(layers))
        self._sources = [self._source(plain[first::blocks]) for first in range(blocks)]
        self._blocks = [_Weights(attention, mlp, hidden_size, eps, names, source) for source in self._sources]
        for users in (layers[first::blocks] for first in range(blocks)):
            if (bank := users[0].adapters) is not None:
                bank.share([user.at(names.block).prefix for user in users])

    def _source(self, users: list[Loader]) -> Loader:
        """Return the loader of a block's tensors, from the first of its users that has them.

        Raises WeightsError if others have other tensors.
        """
        names = self._names
        holders = [inside for user in users if (inside := user.at(names.block)).has(names.norm)]
        if not holders:
            return users[0].at(names.block)
        for name, width in ((names.norm, 2 * self._hidden_size), (names.norm_between, self._hidden_size)):
            first, *others = (each.tensor(name, width) for each in holders)
            for holder, other in zip(holders[1:], others, strict=True):
                if not torch.equal(first, other):
                    raise WeightsError(
                        f"{holder.prefix}{name} is not {holders[0].prefix}{name}: by the configuration, both "
                        "layers have the same block, and this version serves models whose layers share it"
                    )
        return holders[0]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of the tensors of all blocks, which files may hold once or for every layer."""
        return tuple(layer.at(self._names.block).prefix for layer in self._layers)

    def use(self, number: int) -> SharedUse:
        """Return use `number`, which belongs to the `number`-th layer that has one. Raises WeightsError."""
        names, d, inner = self._names, self._hidden_size, self._inner
        weights = self._blocks[number % len(self._blocks)]
        layer = self._layers[number]
        own = layer.at(names.block)
        gate_up = own.adapted(weights.gate_up, d, own.parts({names.gate_up: 2 * inner}))
        return SharedUse(
            weights,
            self._attention(weights.attention, number),
            self._changed(gate_up, (names.gate_up_changes,), number, d, 2 * inner),
            own.adapted(weights.down, inner, own.parts({names.down: d})),
            layer.linear(names.linear, d, d, bias=False),
        )

    def _attention(self, shared: Attention, number: int) -> Attention:
        """Return the attention of use `number`, with the weights of `shared`."""
        names, d = self._names, self._hidden_size
        inside = self._layers[number].at(names.block, names.attention)
        queries, keys, values = shared.widths
        parts = inside.parts({"q_proj": queries, "k_proj": keys, "v_proj": values})
        qkv_proj = inside.adapted(shared.qkv_proj, 2 * d, parts)
        if self._config.attention_adapters:
            qkv_proj = self._changed(qkv_proj, names.attention_changes, number, 2 * d, values)
        return shared.projecting(
            qkv_proj, inside.adapted(shared.o_proj, queries, inside.parts({"o_proj": d}))
        )

    def _changed(
        self, base: Rows, names: Sequence[str], number: int, inputs: int, outputs: int
    ) -> ChangedProduct:
        """Load the changes of use `number` to the parts of a product, each with `outputs` outputs.

        `base` is the product, and `names` are the tensors of the changes in its block, one name for each
        part.
        """
        rank = self._config.adapter_rank
        source, own = self._sources[number % len(self._blocks)], self._layers[number].at(self._names.block)
        changes: list[tuple[Rows, Rows]] = []
        for name in names:
            stored, here = source.at(name, number), own.at(name, number)
            first = stored.linear("0", inputs, rank, bias=False)
            second = stored.linear("1", rank, outputs, bias=False)
            changes.append(
                (
                    here.adapted(first, inputs, here.parts({"0": rank})),
                    here.adapted(second, rank, here.parts({"1": outputs})),
                )
            )
        return ChangedProduct(base, changes)
