"""Grouped-query attention over paged keys and values. Called by `HybridModel` once per attention layer."""

import logging

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.paged_decode import MOST_HEAD_DIM, PagedDecoder
from mamba_kernels.cpu.paged_extend import PagedExtender
from mamba_kernels.dispatch.operators import REFERENCE, Operator
from mamba_kernels.invariant import attention_by_row
from mamba_planner.model_config import AttentionConfig
from mamba_server.model.layers.loader import Loader
from mamba_server.model.step_plans import StepPlans

log = logging.getLogger(__name__)

Turns = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows, [T, h] float32."""


class Attention:
    """Weights and forward of one attention layer."""

    def __init__(self, config: AttentionConfig, hidden_size: int, loader: Loader) -> None:
        self.config = config
        self.write, self.rope = loader.operators.kv_write, loader.operators.rope
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.projections = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        # One product instead of three: the rows are read once, and less is launched.
        self.qkv_proj = loader.joined(self.projections, hidden_size, bias=config.bias)
        self.kernels = self._kernels(None if loader.batch_invariant else loader.library)
        """Attend for rows that decode and for prompts; None = `attend` does for all rows."""
        self.attend, gathers = self._attend(loader)
        self.gathers = gathers and self.kernels is None
        """Whether the plan has to say which keys are gathered."""
        self.o_proj = loader.linear("o_proj", queries, hidden_size, bias=config.bias)

    def _attend(self, loader: Loader) -> tuple[Operator, bool]:
        config, operators = self.config, loader.operators
        if loader.batch_invariant:
            return attention_by_row, True
        if why := operators.why_not_attend(config.heads, config.kv_heads, config.head_dim):
            log.warning("the Triton kernels cannot attend, torch does: %s", why)
            operators = REFERENCE
        return operators.paged_attention, operators.gathers

    def _kernels(self, library: Library | None) -> tuple[PagedDecoder, PagedExtender] | None:
        config = self.config
        if library is None:
            return None
        if config.head_dim > MOST_HEAD_DIM:
            log.warning("the CPU kernels have no heads of %d: torch attends", config.head_dim)
            return None
        heads, kv_heads, width, scale = config.heads, config.kv_heads, config.head_dim, config.scale
        return (
            PagedDecoder(library, heads=heads, kv_heads=kv_heads, head_dim=width, scale=scale),
            PagedExtender(library, heads=heads, kv_heads=kv_heads, head_dim=width, scale=scale),
        )

    def __call__(
        self, x: torch.Tensor, kv: torch.Tensor, plans: StepPlans, turns: Turns | None = None
    ) -> torch.Tensor:
        """x: [T, d]; kv: [pages, 2, page_size, kv_heads, head_dim], written; turns: of queries and keys, None
        without positions. Returns [T, d]."""
        assert plans.attention is not None
        width = self.config.head_dim
        joined = self.qkv_proj(x)
        if turns is not None:
            turned = joined[:, : -self.projections["v_proj"]].unflatten(1, (-1, width))
            self.rope(turned, *turns)
        parts = joined.split(tuple(self.projections.values()), 1)
        query, key, value = (part.unflatten(1, (-1, width)) for part in parts)
        self.write(kv, key, value, plans.page, plans.offset)
        attended = query.new_empty(query.shape)
        if self.kernels is None:
            self.attend(query, kv, self.config.scale, plans.attention, attended)
        else:
            decode, extend = self.kernels
            cut = plans.decodes
            if cut:
                decode(query[:cut], kv, plans.attention, attended[:cut])
            if cut < plans.tokens:
                extend(query[cut:], kv, plans.attention, attended[cut:])
        return self.o_proj(attended.flatten(1))
