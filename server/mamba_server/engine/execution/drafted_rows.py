"""Rows of a step that check drafts: what restricts them, and what their results say. Pure.

The runner calls it before and after the device work of a step, and after the drafting of the model's head.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mamba_server.cache import Ints, Tokens
from mamba_server.engine.execution.step_arrays import verified_drafts
from mamba_server.engine.sequences.output_grammar import NextTokens
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.step_result import StepResult


def by_sequence(drafts: Ints, sizes: list[int], counts: Ints) -> list[Tokens]:
    """Return the draft of each sequence, from `drafts`: all first tokens, then all second ones, and so on.

    `sizes` are the numbers of first tokens, second tokens and so on, and `counts` the tokens of each draft.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return [
        np.array([drafts[starts[turn] + index] for turn in range(count)], np.int32)
        for index, count in enumerate(counts.tolist())
    ]


def rules_of_rows(schedule: Schedule) -> list[NextTokens | Ints | None]:
    """Return what restricts the next token of each row that samples: a mask, or the rules of its answer.

    A row has a mask if drafts were planned by it. None means that any token may come.
    """
    rules: list[NextTokens | Ints | None] = [sequence.grammar for sequence in schedule.sampling]
    decodes = len(schedule.decodes)
    for draft in schedule.drafts:
        if draft.masks is not None:
            rules[draft.index] = draft.masks[0]
    behind = (None if each.masks is None else each.masks[turn + 1] for turn, each in schedule.draft_rows)
    return [*rules[:decodes], *behind, *rules[decodes:]]


def with_drafts(schedule: Schedule, read: Callable[[], StepResult]) -> StepResult:
    """Read the result of a step, and divide it into the results of its sequences and of its drafts."""
    result, decodes = read(), len(schedule.decodes)
    end = schedule.decode_tokens
    finite = result.finite if result.finite is not None else np.ones(end, np.bool_)
    return replace(
        result,
        tokens=np.concatenate([result.tokens[:decodes], result.tokens[end:]]),
        logprobs={
            row if row < decodes else row - end + decodes: scores
            for row, scores in result.logprobs.items()
            if row < decodes or row >= end
        },
        drafts=verified_drafts(schedule, result.tokens, finite, result.logprobs),
        finite=np.concatenate([finite[:decodes], finite[end:]]),
    )
