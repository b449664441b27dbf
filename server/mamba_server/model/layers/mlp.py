"""The feed-forward block: up, activation, down; with a gate where the family has one."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from mamba_kernels import invariant
from mamba_planner.model_config import MlpConfig
from mamba_server.model.errors import UnsupportedModel
from mamba_server.model.layers.loader import Loader, Rows
from mamba_server.model.tensor_names import TensorNames

Activation = Callable[[torch.Tensor], torch.Tensor]


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x, inplace=True).square_()


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Hendrycks and Gimpel 2016: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(x).mul_(0.5)


ACTIVATIONS: dict[str, Activation] = {
    "relu2": _relu2,
    "relu": lambda x: F.relu(x, inplace=True),
    "silu": lambda x: F.silu(x, inplace=True),
    "swish": lambda x: F.silu(x, inplace=True),
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
}
"""By their names in Hugging Face configurations. They may overwrite their argument."""


INVARIANT: dict[str, Activation] = {
    "silu": invariant.silu,
    "swish": invariant.silu,
    "gelu": lambda x: (x * math.sqrt(0.5)).erf_().add_(1).mul_(x).mul_(0.5),
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_new": _gelu_tanh,
}
"""The same out of operations whose bits do not depend on an element's place; the others have such bits."""


def activation(name: str, *, batch_invariant: bool = False) -> Activation:
    """The function of that name. Raises UnsupportedModel for one that is not served."""
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return INVARIANT.get(name, ACTIVATIONS[name]) if batch_invariant else ACTIVATIONS[name]


class Mlp:
    """Weights and forward of one feed-forward block."""

    def __init__(self, config: MlpConfig, hidden_size: int, names: TensorNames, loader: Loader) -> None:
        self.gate_proj: Rows | None
        self.activation: Activation | None
        """None = it is part of the product before it."""
        self.activation = activation(config.activation, batch_invariant=loader.batch_invariant)
        width, bias = config.intermediate, config.bias
        joined = config.activation if loader.activates(config.activation) else ""
        if joined:
            self.activation = None
        if config.gated and names.gate_up_proj:
            both = loader.tensor(f"{names.gate_up_proj}.weight", 2 * width, hidden_size).chunk(2)
            biases = loader.tensor(f"{names.gate_up_proj}.bias", 2 * width).chunk(2) if bias else (None, None)
            self.gate_proj = loader.product(both[0], biases[0], joined)
            self.up_proj = loader.product(both[1], biases[1])
        elif config.gated:
            self.gate_proj = loader.linear("gate_proj", hidden_size, width, bias=bias, activation=joined)
            self.up_proj = loader.linear("up_proj", hidden_size, width, bias=bias)
        else:
            self.gate_proj = None
            self.up_proj = loader.linear("up_proj", hidden_size, width, bias=bias, activation=joined)
        self.down_proj = loader.linear(names.down_proj, width, hidden_size, bias=bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, d] -> [T, d]."""
        if self.gate_proj is None:
            return self.down_proj(self._activated(self.up_proj(x)))
        return self.down_proj(self._activated(self.gate_proj(x)).mul_(self.up_proj(x)))

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.activation is None else self.activation(x)
