"""Paged attention in plain torch on any device, float64 included.

Called by attention layers after `kv_write`. Gathers only positions that were written: recycled pages hold
arbitrary bits, and a masked NaN is still NaN.
"""

from typing import Any

import torch
import torch.nn.functional as F

from mamba_kernels.fp8_pages import Pages, stored_rows
from mamba_kernels.paged_attention.plan import AttentionPiece, AttentionPlan, DecodeGroup
from mamba_kernels.slot_plan import NoHostRoutes

GATHER_ELEMENTS = 1 << 21
"""Bound on the elements of keys that decodes gather at once; larger copies leave the cache and cost page
faults."""
QUERY_BLOCK = 256
"""Query rows of a piece with context that are computed together; it bounds the mask and wasted work."""


def paged_attention(
    query: torch.Tensor, kv: Pages, scale: float, plan: AttentionPlan, out: torch.Tensor
) -> None:
    """Compute softmax(scale q K^T) V over each row's context, causal, with grouped query heads.

    `query` is [T, heads, head_dim]; `kv` is [pages, 2, page_size, kv_heads, head_dim], any strides; `out` is
    like query, written. Query head h reads KV head h // (heads / kv_heads). Raises NoHostRoutes for a plan
    without keys.
    """
    if plan.tokens and not (plan.groups or plan.pieces):
        raise NoHostRoutes("this plan gathers no keys: only Triton's kernels can attend by it")
    for group in plan.groups:
        rows = query[group.rows]
        width = group.pages.shape[1] * kv.shape[3] * kv.shape[4]
        size = max(1, GATHER_ELEMENTS // width)
        parts = [
            _decode(rows[first : first + size], kv, scale, group, slice(first, first + size))
            for first in range(0, len(rows), size)
        ]
        out[group.rows] = parts[0] if len(parts) == 1 else torch.cat(parts)
    for piece in plan.pieces:
        _extend(query, kv, scale, piece, out)


def _gather(
    kv: Pages, pages: torch.Tensor, offsets: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather keys and values [..., positions, kv_heads, head_dim]."""
    return stored_rows(kv, 0, pages, offsets, dtype), stored_rows(kv, 1, pages, offsets, dtype)


def _decode(query: torch.Tensor, kv: Pages, scale: float, group: DecodeGroup, members: slice) -> torch.Tensor:
    """Return the attention of decodes, [g, heads, head_dim].

    The query heads of a KV head are passed to torch as query positions of one head.
    """
    g, heads, width = query.shape
    # [g, L, kv_heads, width]
    key, value = _gather(kv, group.pages[members], group.offsets[members], query.dtype)
    attended = F.scaled_dot_product_attention(
        query.reshape(g, kv.shape[3], -1, width),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=None if group.mask is None else group.mask[members],
        scale=scale,
    )
    return attended.reshape(g, heads, width)


def _extend(query: torch.Tensor, kv: Pages, scale: float, piece: AttentionPiece, out: torch.Tensor) -> None:
    key, value = _gather(kv, piece.pages, piece.offsets, query.dtype)
    key, value = key.transpose(0, 1)[None], value.transpose(0, 1)[None]  # [1, kv_heads, context, width]
    before = piece.context - (piece.end - piece.first)
    rows = query[piece.first : piece.end].transpose(0, 1)[None]
    if before == 0:
        attended = _attend(rows, key, value, is_causal=True, scale=scale)
        out[piece.first : piece.end] = attended[0].transpose(0, 1)
        return
    positions = torch.arange(piece.context, device=query.device)
    for first in range(0, piece.end - piece.first, QUERY_BLOCK):
        end = min(first + QUERY_BLOCK, piece.end - piece.first)
        seen = before + end
        attended = _attend(
            rows[:, :, first:end],
            key[:, :, :seen],
            value[:, :, :seen],
            attn_mask=positions[:seen] <= positions[before + first : seen, None],
            scale=scale,
        )
        out[piece.first + first : piece.first + end] = attended[0].transpose(0, 1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Attend with query [1, heads, rows, width] to key and value [1, kv_heads, positions, width].

    On a CPU with a matrix unit torch copies 16-bit keys and values once for each query head of the call. One
    head per call keeps that copy small on such a machine, and changes nothing on others.
    """
    if query.device.type != "cpu" or query.element_size() != 2:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    shared = query.shape[1] // key.shape[1]
    attended = torch.empty_like(query)
    for head in range(query.shape[1]):
        own, kv_head = slice(head, head + 1), slice(head // shared, head // shared + 1)
        attended[:, own] = F.scaled_dot_product_attention(
            query[:, own], key[:, kv_head], value[:, kv_head], **options
        )
    return attended
