"""`SchedulerLimits`: how many tokens and sequences the scheduler may put into a step. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Budgets of a step, in tokens and sequences.

    `step_tokens` is the largest number of tokens of a step. `chunk` is the prefill chunk: pieces end on its
    multiples unless they end the prompt. `max_running` is the largest number of sequences at once, however
    much memory there is. `answer_tokens` is the expected length of an answer before any has ended.
    """

    step_tokens: int
    chunk: int
    max_running: int
    max_model_len: int
    answer_tokens: int = 256
