"""Drives an engine's core in this process: requests in, times and tokens out."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mamba_server.engine.boot import Engine
from mamba_server.wire import AddRequest, SamplingParams, TokenIds

MOST_STEPS = 1_000_000


@dataclass(slots=True)
class Answer:
    """The tokens of a request, with their times in seconds from the start of the run."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cached: int = 0
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests at once, a part of each prompt being the same."""

    requests: int
    prompt: int
    output: int
    shared: int
    vocab_size: int

    def add_requests(self, name: str, *, salted: bool = False, seed: int = 0) -> list[AddRequest]:
        """Return the requests; `salted`: each has a salt of its own, so that none shares a prefix."""
        rng = np.random.default_rng(seed)
        stem = rng.integers(3, self.vocab_size, self.shared).tolist()
        params = SamplingParams(max_tokens=self.output, temperature=0.0, ignore_eos=True)
        return [
            AddRequest(
                f"{name}-{number}",
                TokenIds([*stem, *rng.integers(3, self.vocab_size, self.prompt - self.shared).tolist()]),
                params,
                cache_salt=f"{name}-{number}" if salted else "",
            )
            for number in range(self.requests)
        ]


def run(engine: Engine, requests: Sequence[AddRequest]) -> tuple[dict[str, Answer], float]:
    """Run the requests, all added at once, until the engine is idle. Returns answers and seconds.

    Raises RuntimeError where a request is refused, a step fails or the books do not balance.
    """
    answers = {request.request_id: Answer() for request in requests}
    began = time.perf_counter()
    for request in requests:
        if (rejected := engine.core.add(request)) is not None:
            raise RuntimeError(f"a request was refused: {rejected}")
    for _ in range(MOST_STEPS):
        deltas = engine.core.step()
        now = time.perf_counter() - began
        for delta in deltas:
            answer = answers[delta.request_id]
            answer.tokens += delta.token_ids
            answer.times += [now] * len(delta.token_ids)
            answer.cached += delta.cached_tokens
            answer.finish_reason = delta.finish_reason or answer.finish_reason
        if engine.core.failed_steps:
            raise RuntimeError(f"a step failed: {engine.core.last_error}")
        if engine.core.idle:
            break
    seconds = time.perf_counter() - began
    for _ in engine.core.cache.recount():
        pass
    return answers, seconds


def latencies(answers: dict[str, Answer], seconds: float) -> dict[str, float]:
    """Return tokens a second, time to the first token, and times between tokens, in seconds."""
    tokens = sum(len(answer.tokens) for answer in answers.values())
    first = sorted(answer.times[0] for answer in answers.values() if answer.times)
    gaps = sorted(gap for answer in answers.values() for gap in np.diff(answer.times).tolist())
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "first_token_p50": statistics.median(first),
        "first_token_p99": first[int(0.99 * (len(first) - 1))],
        "between_tokens_p50": statistics.median(gaps) if gaps else 0.0,
        "between_tokens_p99": gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
        "resumed_tokens": sum(answer.cached for answer in answers.values()),
    }


def agreement(ours: dict[str, Answer], theirs: dict[str, Answer]) -> dict[str, float]:
    """Return the share of answers that are the same, of tokens before the first difference, and its place.

    Answers are compared in the order in which they were asked for. Other batches round otherwise, so that
    likely tokens may change places; an answer in another request's voice would differ from its first tokens.
    """
    same = total = equal = 0
    earliest = float("inf")
    for mine, other in zip(ours.values(), theirs.values(), strict=True):
        pairs = list(zip(mine.tokens, other.tokens, strict=False))
        differing = next((place for place, (left, right) in enumerate(pairs) if left != right), len(pairs))
        same += differing
        total += len(pairs)
        equal += differing == len(pairs)
        if differing < len(pairs):
            earliest = min(earliest, differing)
    return {
        "same_answers": equal / len(ours),
        "tokens_before_a_difference": same / max(1, total),
        "earliest_difference": -1 if earliest == float("inf") else earliest,
    }
