"""Log-probabilities of given tokens under rows of logits, computed in blocks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mamba_planner.workspace import BLOCK_LOGITS, LOGIT_ROWS

ALIGNED_ROWS = 4
"""Rows of 4 bytes each that make 16 bytes: kernels are compiled for blocks that begin at a multiple of
them."""


def block_rows(vocab_size: int) -> int:
    """Return the number of rows of logits that are scored together, or from which a copy is sampled.

    The number bounds the memory of the copies. It is a multiple of `ALIGNED_ROWS` unless the vocabulary is so
    large that a block has fewer rows.
    """
    rows = max(1, min(LOGIT_ROWS, BLOCK_LOGITS // vocab_size))
    return rows - rows % ALIGNED_ROWS or rows


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities of given tokens, and the most likely tokens at their positions, on the device."""

    logprob: torch.Tensor
    """Log-probability of each token, [L]."""
    rank: torch.Tensor
    """[L] int64: 1 plus the number of more likely tokens."""
    top_ids: torch.Tensor
    """Ids of the most likely tokens, [L, k] int32."""
    top_logprobs: torch.Tensor
    """Log-probabilities of `top_ids`, [L, k]."""


def score_tokens(logits: torch.Tensor, token_ids: torch.Tensor, top: int) -> TokenScores:
    """Compute the log-probabilities of given next tokens, for prompt log-probabilities.

    `logits` are [L, vocab] float32, `token_ids` are [L], and `top` is the number of the most likely tokens to
    add.
    """
    vocab_size = logits.shape[1]
    if len(logits) > block_rows(vocab_size):
        return score_blocks(lambda rows: logits[rows], token_ids, top, vocab_size, logits.dtype)
    with torch.inference_mode():
        normalizer = logits.logsumexp(-1, keepdim=True)
        chosen = logits.gather(1, token_ids.to(torch.int64)[:, None])
        rank = (logits > chosen).sum(-1) + 1
        values, ids = logits.topk(min(top, vocab_size))
        return TokenScores((chosen - normalizer)[:, 0], rank, ids.to(torch.int32), values - normalizer)


def score_blocks(
    logits_of: Callable[[slice], torch.Tensor],
    token_ids: torch.Tensor,
    top: int,
    vocab_size: int,
    dtype: torch.dtype,
) -> TokenScores:
    """Compute `score_tokens` of rows whose logits, of type `dtype`, come in blocks.

    `logits_of` returns the logits of a slice of the rows. The results are allocated before the first block: a
    result that was kept where the logits of its block were would leave no room there for the next block, and
    each block would take new memory.
    """
    count, device, top = len(token_ids), token_ids.device, min(top, vocab_size)
    scores = TokenScores(
        torch.empty(count, dtype=dtype, device=device),
        torch.empty(count, dtype=torch.int64, device=device),
        torch.empty(count, top, dtype=torch.int32, device=device),
        torch.empty(count, top, dtype=dtype, device=device),
    )
    size = block_rows(vocab_size)
    for first in range(0, count, size):
        rows = slice(first, first + size)
        part = score_tokens(logits_of(rows), token_ids[rows], top)
        scores.logprob[rows], scores.rank[rows] = part.logprob, part.rank
        scores.top_ids[rows], scores.top_logprobs[rows] = part.top_ids, part.top_logprobs
    return scores
