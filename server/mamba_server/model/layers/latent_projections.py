"""Two projections around experts that work in a width of their own, and a shared expert beside them.

`Moe` has one if its routed experts have a latent width (Nemotron 3 Super). The router and the shared expert
read the rows that the block is given, so the shared expert is a product of its own here.
"""

from dataclasses import replace

import torch

from mamba_planner.model_config import MlpConfig, MoeConfig
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.tensor_names import TensorNames
from mamba_server.model.layers.loader import Loader
from mamba_server.model.layers.mlp import Mlp


class LatentProjections:
    """Narrows the rows of a block for its experts and widens their results; has the shared expert."""

    def __init__(self, config: MoeConfig, hidden_size: int, names: TensorNames, loader: Loader) -> None:
        """Take the weights. `loader` loads the tensors of the block's layer.

        Raises UnsupportedModel, WeightsError.
        """
        if config.latent is None or names.moe is None or not all(names.moe.latent):
            raise UnsupportedModel(
                "this version does not know the tensors of the projections around the model's experts"
            )
        # The projections and the shared expert beside them have no adapters.
        plain = replace(loader, adapters=None)
        first, last = names.moe.latent
        self.enter = plain.linear(first, hidden_size, config.latent, bias=False)
        """Product that narrows the block's rows to those of the routed experts."""
        self.back = plain.linear(last, config.latent, hidden_size, bias=False)
        """Product that widens the result of the routed experts to the width of the model."""
        self.shared: Mlp | None = None
        """The shared expert; None = there is none."""
        if config.shared_intermediate:
            own = MlpConfig(config.shared_intermediate, config.activation, config.gated, bias=False)
            prefix = names.moe.shared_down.removesuffix(f".{names.down_proj}.weight")
            self.shared = Mlp(own, hidden_size, names, plain.at(prefix))

    def leave(self, x: torch.Tensor, routed: torch.Tensor) -> torch.Tensor:
        """Return the block's result [T, d] for its rows x and the experts' result [T, latent]."""
        result = self.back(routed)
        return result if self.shared is None else result.add_(self.shared(x))
