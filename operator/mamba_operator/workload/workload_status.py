"""`status.workload`: the measured traffic, rounded and rarely changed. Pure.

Decisions use the values in the status, so that noise changes no decision and another operator continues from
them.
"""

import math
from datetime import datetime, timedelta

from mamba_api.v1alpha1 import WorkloadStatus
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.recorded_status import parse_timestamp
from mamba_operator.workload.measured_workload import MeasuredWorkload

SELDOM = 300.0
"""Minimum number of seconds between two changes of the status."""
MIN_LENGTH_CHANGE = 0.1
"""Relative difference of mean lengths from which the status is changed."""
RATIO_STEP = 0.05
"""Step to which shared ratios are rounded, and difference from which the status is changed."""
MIN_CONCURRENCY_CHANGE = 0.25
"""Relative difference of the concurrency from which the status is changed. It is large, because the
concurrency varies most."""


def workload_status(
    old: WorkloadStatus | None, measured: MeasuredWorkload | None, now: datetime
) -> WorkloadStatus | None:
    """Return the new status without a proposal; the old one if nothing has changed clearly."""
    kept = old.model_copy(update={"proposed": None}) if old is not None else None
    if measured is None or (
        old is not None and not (_due(old, now) and differs_clearly(recorded_workload(old), measured))
    ):
        return kept
    ratio = measured.shared_prefix_ratio
    return WorkloadStatus(
        prompt_tokens=max(_two_digits(measured.prompt_tokens), 1),
        output_tokens=max(_two_digits(measured.output_tokens), 1),
        shared_prefix_ratio=None if ratio is None else round(round(ratio / RATIO_STEP) * RATIO_STEP, 2),
        concurrency=max(_two_digits(math.ceil(measured.concurrency)), 1),
        requests=_two_digits(measured.requests),
        since=old.since if old is not None else timestamp(now),
        time=timestamp(now),
    )


def differs_clearly(before: MeasuredWorkload, now: MeasuredWorkload) -> bool:
    """Return whether the two measurements differ enough to change the status."""
    ratios = (before.shared_prefix_ratio, now.shared_prefix_ratio)
    if (ratios[0] is None) != (ratios[1] is None):
        return True
    if ratios[0] is not None and ratios[1] is not None and abs(ratios[0] - ratios[1]) >= RATIO_STEP:
        return True
    return (
        _differ(before.prompt_tokens, now.prompt_tokens, MIN_LENGTH_CHANGE)
        or _differ(before.output_tokens, now.output_tokens, MIN_LENGTH_CHANGE)
        or _differ(max(before.concurrency, 1.0), max(now.concurrency, 1.0), MIN_CONCURRENCY_CHANGE)
        or _differ(before.requests, now.requests, 1.0)
    )


def recorded_workload(status: WorkloadStatus) -> MeasuredWorkload:
    """Return the measured traffic that the status records."""
    return MeasuredWorkload(
        float(status.prompt_tokens),
        float(status.output_tokens),
        status.shared_prefix_ratio,
        float(status.concurrency),
        float(status.requests),
    )


def _due(old: WorkloadStatus, now: datetime) -> bool:
    """Return whether `SELDOM` seconds have passed since `old` was written, or the clock was set back."""
    written = parse_timestamp(old.time)
    return written is None or not timedelta() <= now - written < timedelta(seconds=SELDOM)


def _differ(before: float, now: float, by: float) -> bool:
    """Return whether two values differ by the share `by` of the smaller one, and by at least 1."""
    least, most = sorted((before, now))
    return most > least * (1 + by) and most - least >= 1


def _two_digits(number: float) -> int:
    """Return the number rounded to two significant digits."""
    whole = round(number)
    return int(round(whole, 2 - len(str(abs(whole)))))
