"""Builds the C++ decoder of a model and a cache, which computes a whole decode step in one call.

The runner builds one when it starts.
"""

import torch

from mamba_kernels.cpu.expert_router import ExpertRouter
from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.short_conv import ShortConvCalls
from mamba_kernels.cpu.whole_steps.blocks import (
    AttentionBlock,
    DeltaBlock,
    LatentCalls,
    MambaBlock,
    MlpBlock,
    MoeBlock,
    NormedAfter,
    ParallelBlock,
    ShortConvBlock,
)
from mamba_kernels.cpu.whole_steps.blocks import Block as BlockCall
from mamba_kernels.cpu.whole_steps.head_steps import HeadCalls, HeadSteps
from mamba_kernels.cpu.whole_steps.replayed_rows import ReplayedRows
from mamba_kernels.cpu.whole_steps.step_decoder import StepDecoder
from mamba_server.model.adapters.adapted_product import AdaptedProduct
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.layers.attention import Attention
from mamba_server.model.layers.gated_delta import GatedDeltaMixer
from mamba_server.model.layers.hybrid import Block, HybridModel, Mixer
from mamba_server.model.layers.latent_projections import LatentProjections
from mamba_server.model.layers.loader import Norm, Rows
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.layers.mlp import Mlp
from mamba_server.model.layers.moe import Moe
from mamba_server.model.layers.parallel_mixers import ParallelMixers
from mamba_server.model.layers.short_conv import ShortConvMixer


class _NotFusable(Exception):
    """The C++ kernels cannot compute this layer within a whole step."""


def step_decoder(
    model: HybridModel,
    cache: CacheViews,
    *,
    page_table: torch.Tensor,
    last_token: torch.Tensor,
    most_rows: int,
) -> StepDecoder | None:
    """Build the decoder of up to `most_rows` sequences with the weights of `model`.

    Return None if the layers have to be called one by one: without the C++ library, with a plain embedding,
    or if a layer cannot be part of one call. `page_table` is [R, W] int32, and `last_token` [R] or more,
    int32.
    """
    library = model.backend.library
    if library is None or isinstance(weight := model.embedding.weight, torch.Tensor):
        return None
    replay = cache.replay
    if replay is not None:
        most_rows += (len(replay.conv) - 1) * replay.most
    try:
        blocks = [_call(block, cache, model.residual_dtype) for block in model.blocks]
        norm = _kernel(model.norm)
        head = None if cache.hidden is None else _head(model, cache, page_table)
    except _NotFusable:
        return None
    return StepDecoder(
        library,
        embedding=weight,
        blocks=blocks,
        norm=norm,
        embedding_scale=model.embedding_scale,
        frequencies=None if model.rotation is None else model.rotation.frequencies,
        turn_factor=1.0 if model.rotation is None else model.rotation.factor,
        residual_dtype=model.residual_dtype,
        page_table=page_table,
        last_token=last_token,
        most_rows=most_rows,
        replay=None if replay is None else ReplayedRows(replay.conv, replay.ssm, replay.most),
        head=head,
    )


def _head(model: HybridModel, cache: CacheViews, page_table: torch.Tensor) -> HeadSteps:
    """Build the calls of the model's head for drafts."""
    head, library, weight = model.draft_head, model.backend.library, model.embedding.weight
    assert head is not None
    assert library is not None
    assert cache.hidden is not None
    assert cache.tails is not None
    feed_forward = _feed_forward(_kernel(head.norm_between), head.feed_forward)
    if isinstance(weight, torch.Tensor):
        raise _NotFusable
    return HeadSteps(
        library,
        embedding=weight,
        calls=HeadCalls(
            _kernel(head.norm_embedding),
            _kernel(head.norm_hidden),
            _packed_linear(head.join),
            _attention(_kernel(head.norm_before), head.attention, cache, -1),
            feed_forward,
            _kernel(head.norm),
            _packed_linear(model.head),
        ),
        frequencies=None if model.rotation is None else model.rotation.frequencies,
        turn_factor=1.0 if model.rotation is None else model.rotation.factor,
        page_table=page_table,
        kept=cache.hidden.kept,
        tails=cache.tails,
        lane_rows=cache.hidden.rows + 1,
    )


def _feed_forward(norm: RowNorm, mixer: Mixer) -> MlpBlock | MoeBlock:
    match mixer:
        case Moe(router=ExpertRouter() as router, packed=PackedExperts() as experts) as moe:
            return MoeBlock(norm, router, experts, None if moe.latent is None else _latent(moe.latent))
        case Mlp(activation=None) as mlp:
            gate = None if mlp.gate_proj is None else _packed_linear(mlp.gate_proj)
            return MlpBlock(norm, _packed_linear(mlp.up_proj), gate, _packed_linear(mlp.down_proj))
    raise _NotFusable


def _call(block: Block, cache: CacheViews, residual_dtype: torch.dtype) -> BlockCall | NormedAfter:
    call = _block(block, cache)
    if not block.norm_after:
        return call
    if _kernel(block.norm).dtype != residual_dtype:
        raise _NotFusable
    return NormedAfter(call)


def _block(block: Block, cache: CacheViews) -> BlockCall:
    norm, index = _kernel(block.norm), block.cache_index
    match block.mixer:
        case Mamba2Mixer() as mamba:
            return _mamba(norm, mamba, cache, index)
        case GatedDeltaMixer() as delta:
            return _delta(norm, delta, cache, index)
        case ShortConvMixer(kernels=ShortConvCalls() as kernels) as short:
            in_proj, out_proj = _packed_linear(short.in_proj), _packed_linear(short.out_proj)
            return ShortConvBlock(norm, in_proj, kernels, out_proj, cache.conv[index], _ring(cache, index))
        case Attention() as attention:
            return _attention(norm, attention, cache, index)
        case ParallelMixers(mamba=mamba, attention=attention):
            return ParallelBlock(_mamba(norm, mamba, cache, index), _attention(norm, attention, cache, index))
    return _feed_forward(norm, block.mixer)


def _ring(cache: CacheViews, index: int) -> torch.Tensor | None:
    return None if cache.replay is None else cache.replay.ring[index]


def _waiting(cache: CacheViews, index: int) -> torch.Tensor | None:
    return cache.rings[index] if cache.rings else None


def _mamba(norm: RowNorm, mamba: Mamba2Mixer, cache: CacheViews, index: int) -> MambaBlock:
    if mamba.kernels is None:
        raise _NotFusable
    decoder, _ = mamba.kernels
    in_proj, out_proj = _packed_linear(mamba.in_proj), _packed_linear(mamba.out_proj)
    return MambaBlock(
        norm, in_proj, decoder, out_proj, cache.conv[index], cache.ssm[index], _ring(cache, index),
        _waiting(cache, index),
    )  # fmt: skip


def _delta(norm: RowNorm, delta: GatedDeltaMixer, cache: CacheViews, index: int) -> DeltaBlock:
    if delta.kernels is None:
        raise _NotFusable
    in_proj, out_proj = _packed_linear(delta.in_proj), _packed_linear(delta.out_proj)
    return DeltaBlock(
        norm, in_proj, delta.kernels, out_proj, cache.conv[index], cache.ssm[index], _ring(cache, index),
        _waiting(cache, index),
    )  # fmt: skip


def _attention(norm: RowNorm, attention: Attention, cache: CacheViews, index: int) -> AttentionBlock:
    if attention.kernels is None or attention.config.latent is not None:
        raise _NotFusable
    decoder, _ = attention.kernels
    head_norms = [_kernel(head_norm) for head_norm in attention.norms]
    return AttentionBlock(
        norm, _packed_linear(attention.qkv_proj), decoder, _packed_linear(attention.o_proj), cache.kv[index],
        head_norms=(head_norms[0], head_norms[1]) if head_norms else None,
        output_gate=attention.config.output_gate,
    )  # fmt: skip


def _latent(latent: LatentProjections) -> LatentCalls:
    shared = None
    if (own := latent.shared) is not None:
        if own.activation is not None or own.gate_proj is not None:
            raise _NotFusable
        shared = _packed_linear(own.up_proj), _packed_linear(own.down_proj)
    return LatentCalls(_packed_linear(latent.enter), _packed_linear(latent.back), shared)


def _kernel(norm: Norm) -> RowNorm:
    if not isinstance(norm, RowNorm):
        raise _NotFusable
    return norm


def _packed_linear(rows: Rows) -> PackedLinear:
    if isinstance(rows, AdaptedProduct):
        # The call of the base's product names its changes.
        rows = rows.base
    if not isinstance(rows, PackedLinear):
        raise _NotFusable
    return rows
