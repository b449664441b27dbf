"""Log-probabilities of given tokens under rows of logits, block by block."""

from dataclasses import dataclass

import torch

from mamba_planner.workspace import BLOCK_LOGITS, LOGIT_ROWS


def block_rows(vocab_size: int) -> int:
    """Rows of logits that are sampled or scored together: bounds the copies that this takes."""
    return max(1, min(LOGIT_ROWS, BLOCK_LOGITS // vocab_size))


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities of given tokens and of the most likely ones, on the device."""

    logprob: torch.Tensor
    """[L]"""
    rank: torch.Tensor
    """[L] int64: 1 and how many tokens are more likely"""
    top_ids: torch.Tensor
    """[L, k] int32"""
    top_logprobs: torch.Tensor
    """[L, k]"""


def score_tokens(logits: torch.Tensor, token_ids: torch.Tensor, top: int) -> TokenScores:
    """Log-probabilities of given next tokens, for prompt log-probabilities.

    logits: [L, vocab] float32; token_ids: [L]; top: how many of the most likely tokens to add.
    """
    if len(logits) > (size := block_rows(logits.shape[1])):
        blocks = zip(logits.split(size), token_ids.split(size), strict=True)
        parts = [score_tokens(*block, top) for block in blocks]
        return TokenScores(
            torch.cat([part.logprob for part in parts]),
            torch.cat([part.rank for part in parts]),
            torch.cat([part.top_ids for part in parts]),
            torch.cat([part.top_logprobs for part in parts]),
        )
    with torch.inference_mode():
        normalizer = logits.logsumexp(-1, keepdim=True)
        chosen = logits.gather(1, token_ids.to(torch.int64)[:, None])
        rank = (logits > chosen).sum(-1) + 1
        values, ids = logits.topk(min(top, logits.shape[1]))
        return TokenScores((chosen - normalizer)[:, 0], rank, ids.to(torch.int32), values - normalizer)
