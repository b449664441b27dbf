"""Failed attempts of two revisions of the engines, and whether one fails significantly more. Pure.

Gateways count each attempt at an engine as answered or failed, without errors and cancellations of clients.
Two revisions are compared while both serve, never one with its own past: trouble of the whole cluster, or
with what a client sends, affects both. Of each revision the engine that failed most is left out where there
is another one: a single engine that fails more than its peers tells of its node.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

WINDOW = 600.0
"""Seconds over which attempts are summed."""
MIN_ATTEMPTS = 10
"""Fewest attempts of each revision for a comparison."""
MIN_FAILING_SAMPLES = 3
"""Fewest samples with failures: trouble that passes within seconds is no property of a revision."""
MAX_P_VALUE = 1e-4
"""Largest p-value at which the difference counts as significant."""
MIN_RATE_RISE = 0.02
"""Least difference of the two failure rates, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Of one revision, or of one engine at one gateway."""

    answered: float = 0.0
    failed: float = 0.0
    failing_samples: int = 0
    """Samples in which at least one attempt failed."""

    @property
    def total(self) -> float:
        """Answered or failed."""
        return self.answered + self.failed

    @property
    def rate(self) -> float:
        """Share that failed; 0 where there were none."""
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
"""What one gateway has counted since its start, by name of the engine's pod."""
_Engine = tuple[str, str]
"""Revision and name of the engine's pod."""


class AttemptWindow:
    """Of one deployment, while engines of two revisions run."""

    def __init__(self) -> None:
        self._last_counts: dict[str, AttemptsByEngine] = {}
        self._samples: deque[tuple[float, Mapping[_Engine, Attempts]]] = deque()

    def observe(
        self, timestamp: float, revisions: Mapping[str, str], gateways: Mapping[str, AttemptsByEngine | None]
    ) -> bool:
        """Add one sample of the gateways' counters. Returns whether attempts have failed since the last one.

        Args:
            timestamp: seconds of a monotonic clock.
            revisions: revision of each engine pod, by name.
            gateways: counters by gateway pod; None = it did not answer, and its next sample covers both
            times.
        """
        found: dict[_Engine, Attempts] = {}
        for gateway, counts in gateways.items():
            before = self._last_counts.get(gateway)
            if counts is None:
                continue
            self._last_counts[gateway] = counts
            if before is None:
                # Nobody knows over which time it counted.
                continue
            for pod, now in counts.items():
                if (revision := revisions.get(pod)) is not None:
                    more = _increase(before.get(pod, Attempts()), now)
                    found[revision, pod] = found.get((revision, pod), Attempts()) + more
        self._samples.append((timestamp, found))
        while self._samples and self._samples[0][0] <= timestamp - WINDOW:
            self._samples.popleft()
        return any(one.failed for one in found.values())

    def sums(self) -> Mapping[str, Attempts]:
        """Attempts by revision, over the last `WINDOW` seconds, without the worst engine of several."""
        engines: dict[_Engine, Attempts] = {}
        for _, look in self._samples:
            for engine, one in look.items():
                engines[engine] = engines.get(engine, Attempts()) + one
        left_out = {_worst(revision, engines) for revision, _ in engines}
        found: dict[str, Attempts] = {}
        for _, look in self._samples:
            sample: dict[str, Attempts] = {}
            for engine, one in look.items():
                if engine not in left_out:
                    sample[engine[0]] = sample.get(engine[0], Attempts()) + one
            for revision, one in sample.items():
                counted = replace(one, failing_samples=min(one.failing_samples, 1))
                found[revision] = found.get(revision, Attempts()) + counted
        return found


def _worst(revision: str, engines: Mapping[_Engine, Attempts]) -> _Engine | None:
    """Find the engine of the revision that failed most, where another one of it was asked, too."""
    asked = [engine for engine, one in engines.items() if engine[0] == revision and one.total]
    if len(asked) < 2:
        return None
    worst = max(asked, key=lambda engine: engines[engine].failed)
    return worst if engines[worst].failed else None


def fails_more(new: Attempts, old: Attempts) -> bool:
    """Whether the new revision surely fails a larger share of requests than the old one beside it."""
    if (
        min(new.total, old.total) < MIN_ATTEMPTS
        or new.failing_samples < MIN_FAILING_SAMPLES
        or new.rate < old.rate + MIN_RATE_RISE
    ):
        return False
    return p_value(new, old) < MAX_P_VALUE


def p_value(new: Attempts, old: Attempts) -> float:
    """Probability, 0 to 1, that at least as many of all failures fall upon `new`, were both alike: Fisher's
    exact test, one-sided."""
    mine, failures, total = round(new.total), round(new.failed + old.failed), round(new.total + old.total)
    all_ways = _log_choose(total, failures)
    found = 0.0
    for count in range(round(new.failed), min(mine, failures) + 1):
        if failures - count > total - mine:
            continue
        ways = _log_choose(mine, count) + _log_choose(total - mine, failures - count)
        term = math.exp(ways - all_ways)
        found += term
        if term < found * 1e-12:
            # Beyond the likeliest count each is less likely than the one before.
            break
    return min(found, 1.0)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _increase(before: Attempts, now: Attempts) -> Attempts:
    """A counter that fell was started anew, with its gateway or with another engine of that name."""
    if now.answered < before.answered or now.failed < before.failed:
        before = Attempts()
    failed = now.failed - before.failed
    return Attempts(now.answered - before.answered, failed, 1 if failed else 0)
