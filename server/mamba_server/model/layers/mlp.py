"""The feed-forward block: up projection, activation, down projection, and a gate if the family has one."""

import math
from collections.abc import Callable

import torch

from mamba_kernels.activate import Function, activate
from mamba_kernels.dispatch.signatures import Activate
from mamba_kernels.elementwise import silu
from mamba_planner.model_config import MlpConfig
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.tensor_names import TensorNames
from mamba_server.model.layers.loader import Loader, Rows, rows_of

Activation = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Function (x, factor) -> function(x) * factor, all [T, f]. x may be overwritten; None multiplies nothing."""


ACTIVATIONS = {
    "relu2": Function.SQUARED_RELU,
    "relu": Function.RELU,
    "silu": Function.SILU,
    "swish": Function.SILU,
    "gelu": Function.GELU,
    "gelu_pytorch_tanh": Function.GELU_TANH,
    "gelu_new": Function.GELU_TANH,
}
"""Activation functions by their names in Hugging Face configurations."""


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)."""
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(x).mul_(0.5)


INVARIANT: dict[Function, Callable[[torch.Tensor], torch.Tensor]] = {
    Function.SILU: silu,
    Function.GELU: lambda x: (x * math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5),
    Function.GELU_TANH: _gelu_tanh,
}
"""Functions written with operations whose bits do not depend on an element's place; the others have such bits
anyway."""


def activation(name: str, operator: Activate = activate, *, batch_invariant: bool = False) -> Activation:
    """Return the activation with the name `name`.

    `operator` computes it, unless it must be batch-invariant. Raises UnsupportedModel for a function that is
    not served.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedModel(
            f"the activation {name!r} is not supported; supported are {', '.join(ACTIVATIONS)}"
        )
    function = ACTIVATIONS[name]
    if batch_invariant:
        return lambda x, factor: _invariant(function, x, factor)

    def activated(x: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
        operator(x, function, factor)
        return x

    return activated


def _invariant(function: Function, x: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    if (formula := INVARIANT.get(function)) is None:
        activate(x, function)
    else:
        x = formula(x)
    return x if factor is None else x.mul_(factor)


class Mlp:
    """Computes one feed-forward block."""

    def __init__(self, config: MlpConfig, hidden_size: int, names: TensorNames, loader: Loader) -> None:
        self.gate_proj: Rows | None = None
        self.gate_up_proj: Rows | None = None
        """Gate and up projection in one product; None = they are separate, or there is no gate."""
        self.activation: Activation | None
        """Activation after the projection; None = the product applies it."""
        self.activation = activation(
            config.activation, loader.operators.activate, batch_invariant=loader.batch_invariant
        )
        width, bias = config.intermediate, config.bias
        fused = config.activation if loader.activates(config.activation) else ""
        if fused:
            self.activation = None
        if config.gated and names.gate_up_proj:
            both = loader.matrix(f"{names.gate_up_proj}.weight", 2 * width, hidden_size)
            biases = loader.tensor(f"{names.gate_up_proj}.bias", 2 * width) if bias else None
            halves = torch.arange(2 * width).chunk(2)
            if loader.library is None:
                parts = [
                    loader.part(names.gate_up_proj, start, 2 * width, half)
                    for start, half in zip((0, width), halves, strict=True)
                ]
                self.gate_up_proj = loader.product_of([both], biases, parts=parts)
            else:
                gate, up = (rows_of(both, slice(first, first + width)) for first in (0, width))
                gate_bias, up_bias = (None, None) if biases is None else biases.chunk(2)
                gate_part, up_part = (loader.part(names.gate_up_proj, 0, 2 * width, half) for half in halves)
                self.gate_proj = loader.product_of([gate], gate_bias, fused, parts=[gate_part])
                self.up_proj = loader.product_of([up], up_bias, parts=[up_part])
        elif config.gated and loader.joins:
            widths = {names.gate_proj: width, names.up_proj: width}
            self.gate_up_proj = loader.join(widths, hidden_size, bias=bias)
        elif config.gated:
            self.gate_proj = loader.linear(names.gate_proj, hidden_size, width, bias=bias, activation=fused)
            self.up_proj = loader.linear(names.up_proj, hidden_size, width, bias=bias)
        else:
            self.up_proj = loader.linear(names.up_proj, hidden_size, width, bias=bias, activation=fused)
        self.down_proj = loader.linear(names.down_proj, width, hidden_size, bias=bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result [T, d] for x: [T, d]."""
        inner, factor = self._project(x)
        if self.activation is not None:
            inner = self.activation(inner, factor)
        elif factor is not None:
            inner.mul_(factor)
        return self.down_proj(inner)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the input of the activation, and the factor of its result; None = it has no factor."""
        if self.gate_up_proj is not None:
            gate, up = self.gate_up_proj(x).chunk(2, 1)
            return gate, up
        if self.gate_proj is None:
            return self.up_proj(x), None
        return self.gate_proj(x), self.up_proj(x)
