"""`measured_workload`: the traffic that engines counted over a window, as input of the planner. Pure.

The window decays: counts that are `DECAY_SECONDS` old weigh 37 %. It adds differences of counters. A
counter that fell has restarted from zero, and an engine that was not seen before adds nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from mamba_operator.autoscale.reports import ReportInvalid, series

_E = "mambaserve_"
_SERIES = frozenset(
    _E + name
    for name in (
        "requests_running", "requests_waiting", "request_prompt_tokens_sum", "request_prompt_tokens_count",
        "request_generated_tokens_sum", "request_generated_tokens_count",
        "admitted_prompt_tokens_total", "shared_prompt_tokens_total",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Holds what one engine has counted since its start.

    `present` is no counter, but the current value.
    """

    prompts: float
    """Requests that arrived."""
    prompt_tokens: float
    """Prompt tokens of requests that arrived."""
    answers: float
    """Sequences that ended."""
    output_tokens: float
    """Generated tokens of sequences that ended."""
    present: float
    """Sequences that run or wait now."""
    admitted_tokens: float | None = None
    """Prompt tokens of sequences that began; None = the engine does not track shared prefixes."""
    shared_tokens: float | None = None
    """Admitted prompt tokens that an earlier prompt also had; None with `admitted_tokens`."""


def engine_counts(text: str) -> EngineCounts:
    """Return the counts in the Prometheus text of an engine. Raises ReportInvalid."""
    totals = {name: sum(value for _, value in samples) for name, samples in series(text, _SERIES).items()}

    def total(name: str) -> float:
        try:
            return totals[_E + name]
        except KeyError:
            raise ReportInvalid(f"the report has no {_E}{name}") from None

    admitted = totals.get(_E + "admitted_prompt_tokens_total")
    shared = totals.get(_E + "shared_prompt_tokens_total")
    tracks_sharing = admitted is not None and shared is not None
    return EngineCounts(
        prompts=total("request_prompt_tokens_count"),
        prompt_tokens=total("request_prompt_tokens_sum"),
        answers=total("request_generated_tokens_count"),
        output_tokens=total("request_generated_tokens_sum"),
        present=total("requests_running") + total("requests_waiting"),
        admitted_tokens=admitted if tracks_sharing else None,
        shared_tokens=shared if tracks_sharing else None,
    )


DECAY_SECONDS = 1800.0
"""Seconds after which the weight of a count has decayed to 37 %."""
MIN_REQUESTS = 300.0
"""Smallest number of requests, and of answers, in a window that counts as a measurement."""
API_COUNTERS = ("prompts", "prompt_tokens", "answers", "output_tokens")
"""Counters of the engine's API process."""
MODEL_COUNTERS = ("admitted_tokens", "shared_tokens")
"""Counters of the engine's model process, which may restart alone."""


@dataclass(frozen=True, slots=True)
class TrafficWindow:
    """Sums of the counts of a deployment's engines, in which older counts weigh less and less."""

    prompts: float = 0.0
    prompt_tokens: float = 0.0
    answers: float = 0.0
    output_tokens: float = 0.0
    admitted_tokens: float = 0.0
    shared_tokens: float = 0.0
    engine_seconds: float = 0.0
    """Seconds of observation, summed over engines."""
    present_seconds: float = 0.0
    """Seconds of observation times the sequences that were present, summed over engines."""


@dataclass(frozen=True, slots=True)
class MeasuredWorkload:
    """The traffic of one engine, as a mean over about the last half hour."""

    prompt_tokens: float
    output_tokens: float
    shared_prefix_ratio: float | None
    """Share of prompt tokens in shared prefixes, 0 to 1; None = no engine reports it."""
    concurrency: float
    """Mean number of sequences that run or wait in one engine."""
    requests: float
    """Decayed number of requests behind these means."""


def advanced(
    window: TrafficWindow,
    before: Mapping[str, EngineCounts],
    now: Mapping[str, EngineCounts],
    passed: float,
) -> TrafficWindow:
    """Return the window after one more poll.

    Args:
        window: the window before the poll.
        before: the last known counts of each pod.
        now: the counts of each pod that answered.
        passed: seconds since the last poll; a clock that ran backwards counts as no time.
    """
    passed = max(passed, 0.0)
    keep = math.exp(-passed / DECAY_SECONDS)
    sums = {field.name: getattr(window, field.name) * keep for field in fields(window)}
    for pod, counts in now.items():
        old = before.get(pod)
        if old is None:
            continue
        for process in (API_COUNTERS, MODEL_COUNTERS):
            for name, increase in _increases(old, counts, process).items():
                sums[name] += increase
        sums["engine_seconds"] += passed
        sums["present_seconds"] += passed * (old.present + counts.present) / 2
    return TrafficWindow(**sums)


def measured_workload(window: TrafficWindow) -> MeasuredWorkload | None:
    """Return the mean traffic of the window; None while it holds too little."""
    too_few = min(window.prompts, window.answers) < MIN_REQUESTS
    if too_few or window.prompt_tokens <= 0 or window.engine_seconds <= 0:
        return None
    # Sequences that began are not the requests that arrived: half as many tokens are enough.
    sharing_measured = window.admitted_tokens >= window.prompt_tokens / 2
    return MeasuredWorkload(
        prompt_tokens=window.prompt_tokens / window.prompts,
        output_tokens=window.output_tokens / window.answers,
        shared_prefix_ratio=min(window.shared_tokens / window.admitted_tokens, 1.0)
        if sharing_measured
        else None,
        concurrency=window.present_seconds / window.engine_seconds,
        requests=window.prompts,
    )


def window_of(measured: MeasuredWorkload) -> TrafficWindow:
    """Return a window with these means, as if one engine had filled it."""
    requests = max(measured.requests, MIN_REQUESTS)
    tokens = measured.prompt_tokens * requests
    ratio = measured.shared_prefix_ratio
    return TrafficWindow(
        prompts=requests,
        prompt_tokens=tokens,
        answers=requests,
        output_tokens=measured.output_tokens * requests,
        admitted_tokens=0.0 if ratio is None else tokens,
        shared_tokens=0.0 if ratio is None else ratio * tokens,
        engine_seconds=DECAY_SECONDS,
        present_seconds=measured.concurrency * DECAY_SECONDS,
    )


def _increases(before: EngineCounts, now: EngineCounts, names: tuple[str, ...]) -> dict[str, float]:
    """Return the increases of one process's counters; empty unless both reports have all of them."""
    old, new = ([getattr(counts, name) for name in names] for counts in (before, now))
    if None in old or None in new:
        return {}
    if any(after < was for was, after in zip(old, new, strict=True)):
        # The process restarted, so all of its counters did, even those that already exceed their old values.
        old = [0.0] * len(names)
    return {name: after - was for name, was, after in zip(names, old, new, strict=True)}
