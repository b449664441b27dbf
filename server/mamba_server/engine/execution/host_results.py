"""Results of a step on the host: copied behind the step, read after its fence."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from mamba_server.cache import Ints
from mamba_server.engine.execution.sampler import SampledTokens
from mamba_server.engine.execution.token_scores import TokenScores
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.wire import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """A run of prompt tokens in one step, whose log-probabilities the step computes."""

    piece: int
    """Number of the piece in the step."""
    first: int
    stop: int
    """End of the rows [first, stop) of the hidden states."""
    follow: Ints
    """Tokens that follow those rows."""
    top: int
    """Number of the most likely tokens to score with each."""


def to_host(tensor: torch.Tensor, *, reused: bool = False) -> torch.Tensor:
    """Start the copy of `tensor` to the host, and return the copy; it is complete after the step's fence.

    `reused`: later steps overwrite `tensor`.
    """
    if tensor.device.type != "cuda":
        return tensor.clone() if reused else tensor
    out = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return out.copy_(tensor, non_blocking=True)


def on_host(sampled: SampledTokens, *, reused: bool = False) -> SampledTokens:
    """Start the copy of every part of `sampled`, as `to_host` does."""

    def copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else to_host(tensor, reused=reused)

    return SampledTokens(
        to_host(sampled.ids, reused=reused),
        to_host(sampled.finite, reused=reused),
        copy(sampled.logprob),
        copy(sampled.top_ids),
        copy(sampled.top_logprobs),
    )


def in_schedule_order(finite: torch.Tensor, checked: list[int]) -> npt.NDArray[np.bool_]:
    """Reorder flags from the order of the logits to the order of the schedule.

    `checked` is the place in the schedule of each flag. The result is True for a sequence without a flag.
    """
    out = np.ones(len(checked), np.bool_)
    out[checked] = finite.numpy()
    return out


def host_result(
    sampled: SampledTokens | None,
    spans: list[PromptSpan],
    scores: list[TokenScores],
    tops: list[int],
    finite: npt.NDArray[np.bool_],
    pooled: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> StepResult:
    """Build the result of the step from its numbers on the host. Runs after the fence.

    Args:
        sampled: sampled tokens; None = the step sampled none.
        spans: pieces of prompts whose tokens are scored.
        scores: scores of each span.
        tops: number of likely tokens that each sampled row requests.
        finite: flag of each member of the schedule.
        pooled: pooled hidden states, by piece.
    """
    tokens = np.empty(0, np.int32) if sampled is None else sampled.ids.numpy()
    prompt: dict[int, list[TokenLogprobs]] = {}
    for span, score in zip(spans, scores, strict=True):
        follow = span.follow.tolist()
        prompt[span.piece] = [
            TokenLogprobs(token, logprob, tuple(ids[: span.top]), tuple(values[: span.top]), rank)
            for token, logprob, rank, ids, values in zip(
                follow,
                score.logprob.tolist(),
                score.rank.tolist(),
                score.top_ids.tolist(),
                score.top_logprobs.tolist(),
                strict=True,
            )
        ]
    sums = {piece: tensor.numpy() for piece, tensor in pooled.items()}
    return StepResult(tokens, _row_logprobs(sampled, tops), prompt, finite, sums)


def _row_logprobs(sampled: SampledTokens | None, tops: list[int]) -> dict[int, TokenLogprobs]:
    if sampled is None or sampled.logprob is None:
        return {}
    by_row = {}
    logprobs, ids = sampled.logprob.tolist(), sampled.ids.tolist()
    top_ids = sampled.top_ids.tolist() if sampled.top_ids is not None else None
    top_logprobs = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else None
    for index, top in enumerate(tops):
        if top < 0:
            continue
        best = (top_ids[index][:top], top_logprobs[index][:top]) if top_ids and top_logprobs else ([], [])
        by_row[index] = TokenLogprobs(ids[index], logprobs[index], tuple(best[0]), tuple(best[1]))
    return by_row
