"""`StepResult`, `StepTimes` and `StepRunner`: what a step returns to the core, and who computes it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.wire import TokenLogprobs


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """Result of a draft of `drafted` tokens.

    `rows`: each token of the draft, the token sampled behind it and the log-probabilities of that one, up to
    the first whose result is NaN or infinite.
    """

    drafted: int
    rows: list[tuple[int, int, TokenLogprobs | None]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step. Row i belongs to the i-th sampling sequence of the schedule.

    `tokens` are int32[L]. `logprobs` has the log-probabilities of sampled token i, where they are requested.
    `prompt_logprobs` has, by piece, the log-probabilities of the tokens that follow the rows of the piece, if
    requested.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    finite: npt.NDArray[np.bool_] | None = None
    """bool[members]: False where the result of a member of the schedule is NaN or infinity; None =
    nowhere."""
    pooled: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    """By piece of a prompt whose hidden states are pooled: their sum, or the last one."""
    drafts: list[VerifiedDraft] = field(default_factory=list)
    """Result of each draft of the schedule."""


class StepRunner(Protocol):
    """Device side of a step, in three stages.

    `prepare` runs on the loop's side before the launch; the work that it returns runs on the stream; the
    function that this returns reads the result, on the loop's side again, once the step's fence has passed.
    """

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]: ...


@dataclass(slots=True)
class StepTimes:
    """Collects how long each stage of the last steps took, in seconds, until the process reports it."""

    seconds: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds of planning, of the work on the device and of the commit, of each step."""
    batch_sizes: list[int] = field(default_factory=list)
    """Decodes and pieces of each step, together."""
