"""The head of a checkpoint that drafts: a layer of attention behind the model (multi-token prediction).

From a token and the hidden state of the token before it, the head computes a hidden state from which the
model's output head foresees the token after. For the second and later drafts, the head's own result takes the
place of the model's hidden state. Keys and values of each pair are in the page of the pair's token: a page
depends on its own tokens and those before, and serves every text that begins with them. `HybridModel` calls
`follow` for all tokens that it has computed, and `step` for each token of a draft.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.checkpoint.tensor_names import TensorNames
from mamba_server.model.checkpoint.weight_files import DRAFT_HEADS
from mamba_server.model.hidden_rows import HiddenPlan
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.loader import Loader
from mamba_server.model.layers.mlp import Mlp
from mamba_server.model.layers.moe import Moe
from mamba_server.model.step_plans import StepPlans

Embed = Callable[[torch.Tensor], torch.Tensor]


class DraftHead:
    """Computes a model's head that drafts tokens, and writes its keys and values to the cache.

    `embed` is the model's embedding, which the head shares.
    """

    def __init__(
        self, config: ModelConfig, names: TensorNames, loader: Loader, embed: Embed, norm_eps: float
    ) -> None:
        """Take the weights of the head. Raises WeightsError.

        `embed` is the model's embedding, which the head shares.
        """
        d, here, own = config.hidden_size, replace(loader, prefix=DRAFT_HEADS), names.head
        attention, feed_forward = names.blocks["attention"], names.blocks["mlp"]
        assert config.attention is not None
        assert own is not None
        self._embed, self.dtype = embed, loader.dtype
        self.norm_embedding = here.norm(own.embedding_norm, d, norm_eps)
        self.norm_hidden = here.norm(own.hidden_norm, d, norm_eps)
        self.join = here.linear(own.join, 2 * d, d, bias=False)
        layer = here.at("layers", 0)
        self.norm_before = layer.norm(attention.norm, d, norm_eps)
        self.attention = Attention(
            config.attention, d, layer.at(attention.mixer), config.norm_eps, names.attention
        )
        layer = here.at("layers", own.feed_forward)
        self.norm_between = layer.norm(feed_forward.norm, d, norm_eps)
        self.feed_forward = _feed_forward(config, names, layer, layer.at(feed_forward.mixer))
        self.norm = here.norm(own.norm, d, norm_eps)

    def follow(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        plan: HiddenPlan,
        cache: CacheViews,
        page_table: torch.Tensor,
        turns: Turns | None,
    ) -> None:
        """Write keys and values of all tokens of a step, and keep the hidden states that later steps need.

        `hidden` are the model's hidden states behind its last norm, [T, d], and `token_ids` their tokens,
        [T]. `turns` is the rotation of keys; None = there is none.
        """
        assert cache.hidden is not None
        assert cache.tails is not None
        preceding = plan.before(hidden, cache.hidden, cache.tails, page_table)
        x = self.norm_before(self._pairs(token_ids, preceding), None)
        self.attention.remember(x, cache.kv[-1], plan.page, plan.offset, turns, empty=plan.beginning)
        plan.keep(hidden, cache.hidden, cache.tails)

    def step(
        self,
        token_ids: torch.Tensor,
        preceding: torch.Tensor,
        plans: StepPlans,
        cache: CacheViews,
        turns: Turns | None,
    ) -> torch.Tensor:
        """Return the hidden states [n, d] behind the head's norm, of one token of each sequence.

        `token_ids` are the tokens, [n], and `preceding` the hidden states of the tokens before, [n, d].
        `turns` is the rotation of queries and keys; None = there is none.
        """
        x = self._pairs(token_ids, preceding)
        added = self.attention(self.norm_before(x, None), cache.kv[-1], plans, turns)
        added = self.feed_forward(self.norm_between(x, added))
        return self.norm(x, added)

    def _pairs(self, token_ids: torch.Tensor, preceding: torch.Tensor) -> torch.Tensor:
        embedded = self.norm_embedding(self._embed(token_ids).to(self.dtype), None)
        return self.join(torch.cat([embedded, self.norm_hidden(preceding, None)], 1))


def _feed_forward(config: ModelConfig, names: TensorNames, layer: Loader, inside: Loader) -> Mlp | Moe:
    if config.moe is not None and names.moe is not None:
        return Moe(config.moe, config.hidden_size, names, layer)
    assert config.mlp is not None
    return Mlp(config.mlp, config.hidden_size, names, inside)
