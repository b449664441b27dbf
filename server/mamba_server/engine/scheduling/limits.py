"""Budgets of the scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Budgets of a step, in tokens and sequences.

    `chunk`: prefill chunk; pieces end on its multiples unless they end the prompt. `step_tokens`: most tokens
    of a step; `max_running`: most sequences at once, however much memory there is; `answer_tokens`: expected
    length of an answer before any has ended.
    """

    step_tokens: int
    chunk: int
    max_running: int
    max_model_len: int
    answer_tokens: int = 256
