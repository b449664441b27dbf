"""Paged attention in which a row's result depends on its own context alone, bit by bit.

Called by attention layers in batch-invariant mode, for decoding and prefilling rows alike. Keys are processed
in tiles of a fixed width at absolute positions; a tile beyond a row's context adds exactly nothing to the row
(online softmax, Milakov and Gimelshein 2018), so the contexts of other rows do not matter.
"""

import torch

from mamba_kernels.fp8_pages import Pages, stored_rows
from mamba_kernels.paged_attention.plan import AttentionPiece, AttentionPlan, DecodeGroup
from mamba_kernels.precision import accumulator

KEY_TILE = 64
BLOCK_ELEMENTS = 1 << 20
"""Bound on the elements of the intermediate [rows, heads, KEY_TILE, head_dim]."""


def attention_by_row(
    query: torch.Tensor, kv: Pages, scale: float, plan: AttentionPlan, out: torch.Tensor
) -> None:
    """Compute softmax(scale q K^T) V over each row's context, causal, with grouped query heads.

    `query` is [T, heads, head_dim]; `kv` is [pages, 2, page_size, kv_heads, head_dim], any strides; `out` is
    like query, written. Query head h reads KV head h // (heads / kv_heads).
    """
    most = max(1, BLOCK_ELEMENTS // (KEY_TILE * query.shape[1] * query.shape[2]))
    for group in plan.groups:
        out[group.rows] = _decode(query[group.rows], kv, scale, group, most)
    for piece in plan.pieces:
        _extend(query, kv, scale, piece, most, out)


def _decode(query: torch.Tensor, kv: Pages, scale: float, group: DecodeGroup, most: int) -> torch.Tensor:
    rows, length = group.pages.shape
    seen = torch.ones(rows, length, dtype=torch.bool, device=query.device)
    if group.mask is not None:
        seen = group.mask.view(rows, length)
    parts = []
    for first in range(0, rows, most):
        part = slice(first, min(first + most, rows))
        parts.append(_attend(query[part], kv, scale, group.pages[part], group.offsets[part], seen[part]))
    return torch.cat(parts)


def _extend(
    query: torch.Tensor, kv: Pages, scale: float, piece: AttentionPiece, most: int, out: torch.Tensor
) -> None:
    before = piece.context - (piece.end - piece.first)
    positions = torch.arange(piece.context, device=query.device)
    for first in range(piece.first, piece.end, most):
        end = min(first + most, piece.end)
        depth = before + first - piece.first
        length = depth + end - first
        seen = positions[:length] <= positions[depth:length, None]
        pages, offsets = piece.pages[None, :length], piece.offsets[None, :length]
        out[first:end] = _attend(query[first:end], kv, scale, pages, offsets, seen)


def _attend(
    query: torch.Tensor,
    kv: Pages,
    scale: float,
    pages: torch.Tensor,
    offsets: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Attend to the positions in `seen` and return a tensor like query.

    `query` is [r, heads, width]; `pages` and `offsets` are [r or 1, L], of written positions; `seen` is [r,
    L].
    """
    kind = accumulator(query.dtype)
    r, heads, width = query.shape
    kv_heads, length = kv.shape[3], pages.shape[1]
    q = query.to(kind).reshape(r, kv_heads, heads // kv_heads, 1, width)
    best = q.new_full((r, kv_heads, heads // kv_heads, 1), -torch.inf)
    total = torch.zeros_like(best)
    sums = q.new_zeros(r, kv_heads, heads // kv_heads, width)
    for first in range(0, length, KEY_TILE):
        tile = slice(first, min(first + KEY_TILE, length))
        missing = first + KEY_TILE - tile.stop
        page, offset = (_repeat_last(index[:, tile], missing) for index in (pages, offsets))
        hidden = torch.nn.functional.pad(~seen[:, tile], (0, missing), value=True)[:, None, None]
        # Gathered in a narrower type and widened here; contiguous, so that sums run over neighbours.
        key = stored_rows(kv, 0, page, offset, query.dtype).to(kind).transpose(1, 2).contiguous()
        value = stored_rows(kv, 1, page, offset, query.dtype).to(kind).permute(0, 2, 3, 1).contiguous()
        scores = (q * key[:, :, None]).sum(-1).mul_(scale).masked_fill_(hidden, -torch.inf)
        higher = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - higher)
        fade = torch.exp(best - higher)
        total = total * fade + weights.sum(-1, keepdim=True)
        sums = sums * fade + (weights[..., None, :] * value[:, :, None]).sum(-1)
        best = higher
    return (sums / total).reshape(r, heads, width).to(query.dtype)


def _repeat_last(index: torch.Tensor, times: int) -> torch.Tensor:
    """Extend the last dimension by repeating the last position: recycled pages hold arbitrary bits."""
    return torch.cat([index, index[:, -1:].expand(-1, times)], 1) if times else index
