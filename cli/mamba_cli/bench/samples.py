"""`Sample`: the measurements of one request, and percentiles, goodput and report from many. Pure.

TTFT is the time from sending to the first event with a token, ITL the time between two events with tokens,
TPOT the mean time per token after the first, and E2E the time from sending to the end. Times are in seconds,
in the report in milliseconds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

QUANTILES = (50, 90, 95, 99)


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of one request; `error` is None if the request succeeded."""

    sent: float
    """Time of sending, in seconds from the start of the run."""
    end: float
    late: float = 0.0
    """Delay after the scheduled time, in seconds."""
    ttft: float | None = None
    """Seconds from sending to the first event with a token; None = there was none."""
    itl: tuple[float, ...] = ()
    """Seconds between two events with tokens."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def e2e(self) -> float:
        """Seconds from sending to the end."""
        return self.end - self.sent

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None for answers of fewer than two tokens."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)


class LatencyLimits(msgspec.Struct, frozen=True):
    """Limits of the latencies in seconds; None = no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def met(self, sample: Sample) -> bool:
        """Return whether the request succeeded within every limit; an answer of one token has no TPOT."""
        if sample.error is not None or sample.ttft is None:
            return False
        pairs = ((self.ttft, sample.ttft), (self.tpot, sample.tpot or 0.0), (self.e2e, sample.e2e))
        return all(limit is None or value <= limit for limit, value in pairs)

    def to_json(self) -> dict[str, float | None]:
        """Return the limits in milliseconds, as the report has them; None = no limit."""
        limits = msgspec.structs.asdict(self)
        return {name: None if limit is None else round(1000 * limit, 3) for name, limit in limits.items()}


def percentile(ordered: Sequence[float], rank: float) -> float:
    """Return the `rank`-th percentile (0 to 100) of ascending values, linear between neighbours.

    Raises ValueError without values or outside of 0 to 100.
    """
    if not ordered or not 0 <= rank <= 100:
        raise ValueError("a percentile needs values, and a rank from 0 to 100")
    place = (len(ordered) - 1) * rank / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """Return mean, percentiles and maximum in milliseconds; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    percentiles = {f"p{rank}": percentile(ordered, rank) for rank in QUANTILES}
    statistics = {"mean": math.fsum(ordered) / len(ordered), **percentiles, "max": ordered[-1]}
    return {name: round(1000 * value, 3) for name, value in statistics.items()}


def peak(samples: Iterable[Sample]) -> int:
    """Return the largest number of requests in flight at one time."""
    steps = [(sample.sent, 1) for sample in samples] + [(sample.end, -1) for sample in samples]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def report(samples: Sequence[Sample], slo: LatencyLimits) -> dict[str, Any]:
    """Return the report of a run; failed requests count for goodput, not for latencies."""
    good = [sample for sample in samples if sample.error is None]
    begin = min((sample.sent for sample in samples), default=0.0)
    seconds = max((sample.end for sample in samples), default=0.0) - begin
    per = 1 / seconds if seconds > 0 else 0.0
    prompt, cached = sum(s.prompt_tokens for s in good), sum(s.cached_tokens for s in good)
    output, met = sum(s.output_tokens for s in good), sum(slo.met(s) for s in samples)
    return {
        "requests": {
            "sent": len(samples),
            "ok": len(good),
            "failed": len(samples) - len(good),
            "errors": dict(Counter(s.error for s in samples if s.error is not None).most_common()),
            "peak_concurrency": peak(list(samples)),
        },
        "seconds": round(seconds, 4),
        "tokens": {
            "prompt": prompt,
            "output": output,
            "cached": cached,
            "cached_share": round(cached / prompt, 4) if prompt else 0.0,
        },
        "rates": {
            "requests_per_second": round(len(good) * per, 4),
            "output_tokens_per_second": round(output * per, 2),
            "total_tokens_per_second": round((prompt + output) * per, 2),
        },
        "latency_ms": _latencies(good),
        "goodput": {
            "slo_ms": slo.to_json(),
            "met": met,
            "attainment": round(met / len(samples), 4) if samples else 0.0,
            "requests_per_second": round(met * per, 4),
        },
        "late_ms": summary(s.late for s in samples),
    }


def _latencies(samples: Sequence[Sample]) -> dict[str, dict[str, float] | None]:
    return {
        "ttft": summary(s.ttft for s in samples if s.ttft is not None),
        "tpot": summary(s.tpot for s in samples if s.tpot is not None),
        "itl": summary(gap for s in samples for gap in s.itl),
        "e2e": summary(s.e2e for s in samples),
    }
