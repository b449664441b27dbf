"""`measured_workload`: what engines counted over a window, as the traffic that a plan is made for. Pure.

The window forgets evenly: what is `WINDOW` seconds old counts for 37 %. Counters are taken as differences, so
that one that fell was started anew and counts from zero, and an engine that was not seen before gives none.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from mamba_operator.workload.counts import EngineCounts

WINDOW = 1800.0
"""Seconds after which what was counted has faded to 37 %."""
LEAST_REQUESTS = 300.0
"""Requests in the window, and as many answers, before it says anything."""


OF_API = ("prompts", "prompt_tokens", "answers", "output_tokens")
"""What the process with the API counts."""
OF_ENGINE = ("admitted_tokens", "shared_tokens")
"""What the process with the model counts, which may be started anew alone."""


@dataclass(frozen=True, slots=True)
class TrafficWindow:
    """Faded sums over all engines of a deployment."""

    prompts: float = 0.0
    prompt_tokens: float = 0.0
    answers: float = 0.0
    output_tokens: float = 0.0
    admitted_tokens: float = 0.0
    shared_tokens: float = 0.0
    engine_seconds: float = 0.0
    """For which engines were looked at."""
    present_seconds: float = 0.0
    """The same, times the sequences that were there."""


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """Mean traffic of one engine."""

    prompt_tokens: float
    output_tokens: float
    shared_prefix_ratio: float | None
    """0 to 1; None: no engine tells."""
    concurrency: float
    """Sequences that run or wait in one engine, over time."""
    requests: float
    """How many these are the means of, faded."""


def advanced(
    window: TrafficWindow,
    before: Mapping[str, EngineCounts],
    now: Mapping[str, EngineCounts],
    passed: float,
) -> TrafficWindow:
    """The window after another look.

    Args:
        window: before it.
        before: by pod, what it said when it last said anything.
        now: by pod that answered, what it says.
        passed: seconds since the last look; a clock that ran backwards counts as no time.
    """
    passed = max(passed, 0.0)
    keep = math.exp(-passed / WINDOW)
    sums = {one.name: getattr(window, one.name) * keep for one in fields(window)}
    for pod, counts in now.items():
        old = before.get(pod)
        if old is None:
            continue
        for process in (OF_API, OF_ENGINE):
            for name, increase in _increases(old, counts, process).items():
                sums[name] += increase
        sums["engine_seconds"] += passed
        sums["present_seconds"] += passed * (old.present + counts.present) / 2
    return TrafficWindow(**sums)


def measured_workload(window: TrafficWindow) -> MeasuredWorkload | None:
    """What the window amounts to; None while it holds too little."""
    too_few = min(window.prompts, window.answers) < LEAST_REQUESTS
    if too_few or window.prompt_tokens <= 0 or window.engine_seconds <= 0:
        return None
    # Sequences that began are other ones than requests that came: half of them still say what they shared.
    known = window.admitted_tokens >= window.prompt_tokens / 2
    return MeasuredWorkload(
        prompt_tokens=window.prompt_tokens / window.prompts,
        output_tokens=window.output_tokens / window.answers,
        shared_prefix_ratio=min(window.shared_tokens / window.admitted_tokens, 1.0) if known else None,
        concurrency=window.present_seconds / window.engine_seconds,
        requests=window.prompts,
    )


def window_of(measured: MeasuredWorkload) -> TrafficWindow:
    """One that says the same, as if it had been filled by one engine."""
    requests = max(measured.requests, LEAST_REQUESTS)
    tokens = measured.prompt_tokens * requests
    ratio = measured.shared_prefix_ratio
    return TrafficWindow(
        prompts=requests,
        prompt_tokens=tokens,
        answers=requests,
        output_tokens=measured.output_tokens * requests,
        admitted_tokens=0.0 if ratio is None else tokens,
        shared_tokens=0.0 if ratio is None else ratio * tokens,
        engine_seconds=WINDOW,
        present_seconds=measured.concurrency * WINDOW,
    )


def _increases(before: EngineCounts, now: EngineCounts, names: tuple[str, ...]) -> dict[str, float]:
    """Of the counters of one process; none where it did not tell all of them both times."""
    old, new = ([getattr(one, name) for name in names] for one in (before, now))
    if None in old or None in new:
        return {}
    if any(after < was for was, after in zip(old, new, strict=True)):
        # It was started anew, and all of them with it, whichever are already above what they were.
        old = [0.0] * len(names)
    return {name: after - was for name, was, after in zip(names, old, new, strict=True)}
