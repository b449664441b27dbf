"""Failed attempts of two revisions of the engines, and whether one fails significantly more. Pure.

Gateways count each attempt at an engine as answered or failed, without errors and cancellations of clients.
Two revisions are compared while both serve, never one with its own past: trouble of the whole cluster, or
with the requests of a client, affects both. The engine of a revision that failed most is left out if the
revision has another one: a single engine that fails more than its peers points to its node.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

WINDOW_SECONDS = 600.0
"""Seconds over which attempts are summed."""
MIN_ATTEMPTS = 10
"""Smallest number of attempts of each revision for a comparison."""
MIN_FAILING_SAMPLES = 3
"""Smallest number of samples with failures: trouble that passes within seconds is no fault of a revision."""
MAX_P_VALUE = 1e-4
"""Largest p-value at which the difference counts as significant."""
MIN_RATE_RISE = 0.02
"""Smallest difference of the two failure rates, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The numbers of requests that succeeded and failed, at one revision or at one engine."""

    answered: float = 0.0
    failed: float = 0.0
    failing_samples: int = 0
    """Samples in which at least one attempt failed."""

    @property
    def total(self) -> float:
        """Number of attempts, answered or failed."""
        return self.answered + self.failed

    @property
    def rate(self) -> float:
        """Share of attempts that failed; 0 without attempts."""
        return self.failed / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.failed:.0f} of {self.total:.0f} ({self.rate:.1%})"

    def __add__(self, other: "Attempts") -> "Attempts":
        return Attempts(
            self.answered + other.answered,
            self.failed + other.failed,
            self.failing_samples + other.failing_samples,
        )


AttemptsByEngine = Mapping[str, Attempts]
"""Attempts that one gateway has counted since its start, by name of the engine's pod."""
_Engine = tuple[str, str]
"""Revision and name of the engine's pod."""


class AttemptWindow:
    """Counts recent successes and failures at one deployment's engines, while two revisions run."""

    def __init__(self) -> None:
        self._last_counts: dict[str, AttemptsByEngine] = {}
        self._samples: deque[tuple[float, Mapping[_Engine, Attempts]]] = deque()

    def observe(
        self, timestamp: float, revisions: Mapping[str, str], gateways: Mapping[str, AttemptsByEngine | None]
    ) -> bool:
        """Add one sample of the gateways' counters, and return whether attempts failed since the last one.

        Args:
            timestamp: seconds of a monotonic clock.
            revisions: revision of each engine pod, by name.
            gateways: counters by gateway pod; None = it did not answer, and its next sample covers both
                intervals.
        """
        sample: dict[_Engine, Attempts] = {}
        for gateway, counts in gateways.items():
            before = self._last_counts.get(gateway)
            if counts is None:
                continue
            self._last_counts[gateway] = counts
            if before is None:
                # The time over which this gateway counted is unknown.
                continue
            for pod, now in counts.items():
                if (revision := revisions.get(pod)) is not None:
                    more = increase(before.get(pod, Attempts()), now)
                    sample[revision, pod] = sample.get((revision, pod), Attempts()) + more
        self._samples.append((timestamp, sample))
        while self._samples and self._samples[0][0] <= timestamp - WINDOW_SECONDS:
            self._samples.popleft()
        return any(attempts.failed for attempts in sample.values())

    def sums(self) -> Mapping[str, Attempts]:
        """Return the attempts of the last `WINDOW_SECONDS` by revision, without the worst engine."""
        engines: dict[_Engine, Attempts] = {}
        for _, by_engine in self._samples:
            for engine, attempts in by_engine.items():
                engines[engine] = engines.get(engine, Attempts()) + attempts
        left_out = {_worst(revision, engines) for revision, _ in engines}
        sums: dict[str, Attempts] = {}
        for _, by_engine in self._samples:
            sample: dict[str, Attempts] = {}
            for engine, attempts in by_engine.items():
                if engine not in left_out:
                    sample[engine[0]] = sample.get(engine[0], Attempts()) + attempts
            for revision, attempts in sample.items():
                counted = replace(attempts, failing_samples=min(attempts.failing_samples, 1))
                sums[revision] = sums.get(revision, Attempts()) + counted
        return sums


def _worst(revision: str, engines: Mapping[_Engine, Attempts]) -> _Engine | None:
    """Return the revision's engine with most failures; None without any, or if fewer than two were tried."""
    tried = [engine for engine, attempts in engines.items() if engine[0] == revision and attempts.total]
    if len(tried) < 2:
        return None
    worst = max(tried, key=lambda engine: engines[engine].failed)
    return worst if engines[worst].failed else None


def fails_more(new: Attempts, old: Attempts) -> bool:
    """Return whether the new revision significantly fails a larger share of requests than the old one."""
    if (
        min(new.total, old.total) < MIN_ATTEMPTS
        or new.failing_samples < MIN_FAILING_SAMPLES
        or new.rate < old.rate + MIN_RATE_RISE
    ):
        return False
    return p_value(new, old) < MAX_P_VALUE


def p_value(new: Attempts, old: Attempts) -> float:
    """Return the one-sided p-value, 0 to 1, of Fisher's exact test for more failures of `new`.

    This is the probability that `new` has at least as many of all failures if both revisions are alike.
    """
    new_total, failures, total = (
        round(new.total),
        round(new.failed + old.failed),
        round(new.total + old.total),
    )
    all_ways = log_choose(total, failures)
    probability = 0.0
    for count in range(round(new.failed), min(new_total, failures) + 1):
        if failures - count > total - new_total:
            continue
        ways = log_choose(new_total, count) + log_choose(total - new_total, failures - count)
        term = math.exp(ways - all_ways)
        probability += term
        if term < probability * 1e-12:
            # Beyond the likeliest count, each count is less likely than the previous one.
            break
    return min(probability, 1.0)


def log_choose(n: int, k: int) -> float:
    """Return the logarithm of the number of ways to choose `k` of `n`."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def increase(before: Attempts, now: Attempts) -> Attempts:
    """Return the increase of the counters. A counter that fell has restarted from zero."""
    if now.answered < before.answered or now.failed < before.failed:
        before = Attempts()
    failed = now.failed - before.failed
    return Attempts(now.answered - before.answered, failed, 1 if failed else 0)
