"""What `status.workload` says of the traffic that was measured: rounded, and seldom anew. Pure.

Decisions are made by what stands there: noise moves none of them, and another operator goes on with it.
"""

import math
from datetime import datetime, timedelta

from mamba_api.v1alpha1 import WorkloadStatus
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.workload.measured_workload import MeasuredWorkload

SELDOM = 300.0
"""Seconds between two changes of what is shown."""
MOVED = 0.1
"""By how much lengths have to differ to be shown anew."""
RATIO_STEP = 0.05
"""Shared parts are rounded to multiples of it, and shown anew when they are another one's by all of it."""
CROWDED = 0.25
"""By how much the concurrency has to differ: it is what swings most."""


def workload_status(
    old: WorkloadStatus | None, measured: MeasuredWorkload | None, now: datetime
) -> WorkloadStatus | None:
    """What to show, without a proposal; what was shown, while nothing is measured or nothing has moved."""
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
    """Whether the difference matters."""
    ratios = (before.shared_prefix_ratio, now.shared_prefix_ratio)
    if (ratios[0] is None) != (ratios[1] is None):
        return True
    if ratios[0] is not None and ratios[1] is not None and abs(ratios[0] - ratios[1]) >= RATIO_STEP:
        return True
    return (
        _differ(before.prompt_tokens, now.prompt_tokens, MOVED)
        or _differ(before.output_tokens, now.output_tokens, MOVED)
        or _differ(max(before.concurrency, 1.0), max(now.concurrency, 1.0), CROWDED)
        or _differ(before.requests, now.requests, 1.0)
    )


def recorded_workload(shown: WorkloadStatus) -> MeasuredWorkload:
    """What is shown, as it was measured."""
    return MeasuredWorkload(
        float(shown.prompt_tokens),
        float(shown.output_tokens),
        shown.shared_prefix_ratio,
        float(shown.concurrency),
        float(shown.requests),
    )


def _due(old: WorkloadStatus, now: datetime) -> bool:
    """Also after the clock was set back."""
    written = parse_timestamp(old.time)
    return written is None or not timedelta() <= now - written < timedelta(seconds=SELDOM)


def _differ(before: float, now: float, by: float) -> bool:
    """By that share, and by one at least: what is shown are whole numbers."""
    least, most = sorted((before, now))
    return most > least * (1 + by) and most - least >= 1


def _two_digits(number: float) -> int:
    """Rounded to two significant digits."""
    whole = round(number)
    return int(round(whole, 2 - len(str(abs(whole)))))
