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

    @classmethod
    def room(cls, rows: int, top: int, device: torch.device, dtype: torch.dtype) -> "TokenScores":
        """Not yet written. Made before the first block's logits: what is kept of a block and lies where its
        logits lay would leave no room there for the next block's, and each would take new memory."""
        return cls(
            torch.empty(rows, dtype=dtype, device=device),
            torch.empty(rows, dtype=torch.int64, device=device),
            torch.empty(rows, top, dtype=torch.int32, device=device),
            torch.empty(rows, top, dtype=dtype, device=device),
        )

    def put(self, first: int, part: "TokenScores") -> None:
        """The rows from `first` on are those of `part`."""
        rows = slice(first, first + len(part.logprob))
        self.logprob[rows], self.rank[rows] = part.logprob, part.rank
        self.top_ids[rows], self.top_logprobs[rows] = part.top_ids, part.top_logprobs


def score_tokens(logits: torch.Tensor, token_ids: torch.Tensor, top: int) -> TokenScores:
    """Log-probabilities of given next tokens, for prompt log-probabilities.

    logits: [L, vocab] float32; token_ids: [L]; top: how many of the most likely tokens to add.
    """
    top = min(top, logits.shape[1])
    if len(logits) > (size := block_rows(logits.shape[1])):
        scores = TokenScores.room(len(logits), top, logits.device, logits.dtype)
        for first in range(0, len(logits), size):
            rows = slice(first, first + size)
            scores.put(first, score_tokens(logits[rows], token_ids[rows], top))
        return scores
    with torch.inference_mode():
        normalizer = logits.logsumexp(-1, keepdim=True)
        chosen = logits.gather(1, token_ids.to(torch.int64)[:, None])
        rank = (logits > chosen).sum(-1) + 1
        values, ids = logits.topk(top)
        return TokenScores((chosen - normalizer)[:, 0], rank, ids.to(torch.int32), values - normalizer)
