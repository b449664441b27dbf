"""Attention whose heads all read one latent row of each token, the only one in the pages (Kimi-Linear).

A head's keys and values are products of the latent row with two matrices. They are never computed: the
matrix of keys is multiplied into the head's query, and the matrix of values into the sum of rows that the
head attended to. There are no positions. `HybridModel` calls each layer once per step.
"""

from dataclasses import replace

import torch

from mamba_planner.model_config import AttentionConfig, LatentConfig
from mamba_server.model.adapters.adapted_heads import AdaptedHeads
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.loader import Loader, Rows

NORM_EPS = 1e-6
"""Epsilon of the norm of the latent, which the published code does not configure."""


class LatentAttention(Attention):
    """Computes one attention layer whose keys and values are one narrow (latent) row for each token."""

    def __init__(
        self, config: AttentionConfig, latent: LatentConfig, hidden_size: int, loader: Loader
    ) -> None:
        """Take the weights of one layer."""
        self.config, self.latent = config, latent
        queries = config.heads * (latent.own + latent.shared)
        self.widths = (queries, config.head_dim)
        projections = {"q_proj": queries, "kv_a_proj_with_mqa": config.head_dim}
        self.qkv_proj = loader.join(projections, hidden_size, bias=False)
        self.norm = loader.norm("kv_a_layernorm.weight", latent.rank, NORM_EPS)
        heads = loader.tensor(
            "kv_b_proj.weight", config.heads * (latent.own + latent.values), latent.rank
        ).view(config.heads, -1, latent.rank)
        own, values = heads.split([latent.own, latent.values], 1)
        self.absorb_keys: Rows = _of_heads(own.transpose(1, 2), loader)
        """Product of each head's own queries with its matrix of keys: [T, H, own] -> [T, H, rank]"""
        self.absorb_values: Rows = _of_heads(values, loader)
        """Product of the sum of latent rows that each head attended to with its matrix of values:
        [T, H, rank] -> [T, H, values]"""
        if (bank := loader.adapters) is not None:
            part = loader.part("kv_b_proj", 0, config.heads * (latent.own + latent.values))
            changes = bank.adapt_heads(part, config.heads, latent.rank)
            before, behind = slice(0, latent.own), slice(latent.own, None)
            self.absorb_keys = AdaptedHeads(self.absorb_keys, changes, before, backwards=True, current=bank)
            self.absorb_values = AdaptedHeads(
                self.absorb_values, changes, behind, backwards=False, current=bank
            )
        self.take_kernels(loader)
        self.o_proj = loader.linear("o_proj", config.heads * latent.values, hidden_size, bias=False)

    def _project(
        self, x: torch.Tensor, turns: Turns | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return queries [T, H, rank + shared], rows [T, 1, rank + shared] as keys and as values, and None.

        None stands for the gate, which this attention does not have.
        """
        latent = self.latent
        query, row = self.qkv_proj(x).split(self.widths, 1)
        own, shared = query.unflatten(1, (self.config.heads, -1)).split([latent.own, latent.shared], 2)
        absorbed = torch.cat((self.absorb_keys(own), shared), 2)
        narrow, common = row.split([latent.rank, latent.shared], 1)
        key = torch.cat((self.norm(narrow.contiguous(), None), common), 1)[:, None]
        return absorbed, key, key, None

    def _flat(self, attended: torch.Tensor) -> torch.Tensor:
        return self.absorb_values(attended[..., : self.latent.rank]).flatten(1)


def _of_heads(weight: torch.Tensor, loader: Loader) -> Rows:
    """Return the products of all heads, [T, H, a] -> [T, H, b], for weight [H, b, a]."""
    if loader.library is None:
        matrices = weight.transpose(1, 2).contiguous()
        return lambda x: torch.bmm(x.transpose(0, 1), matrices).transpose(0, 1)
    # A row has the same bits alone and among others, unlike in torch's product of all heads.
    plain = replace(loader, adapters=None)
    heads = [plain.product(each.contiguous(), None, parts=()) for each in weight]

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([head(x[:, number]) for number, head in enumerate(heads)], 1)

    return by_head
