"""`CandidateTrial`: decides whether the candidate is worse than the revision beside it. Pure.

Requests are chosen for the candidate by a hash of their conversation, so both revisions answer similar
requests at the same time. The answers are compared within one step only: in another step the load and the
weight differ.

The comparison is repeated while counts grow, and each repetition could be a false alarm. Look number k of a
measure may therefore spend only 1/(k(k+1)) of the error that the measure is allowed, which for any number of
looks adds up to no more than the whole. Looks are made when the candidate's count has grown by a third, so
that there are few of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mamba_api.v1alpha1 import Canary, CanaryAnalysis
from mamba_operator.canary.histogram import Histogram, p_value_of_longer
from mamba_operator.rollout.attempts import MIN_FAILING_SAMPLES, Attempts, log_choose, p_value
from mamba_operator.rollout.rollback import ANSWERS_DIFFER, ERROR_RATE_ROSE, TPOT_ROSE, TTFT_ROSE

Measure = Literal["errors", "ttft", "tpot", "answers"]
MEASURES: tuple[Measure, ...] = ("errors", "ttft", "tpot", "answers")
FIRST_LOOK = 20
"""Number of the candidate's requests, or streamed answers, at the first look of a step."""
LOOK_GROWTH = 4 / 3
"""Factor from one look to the next on the number of requests at which it takes place."""
SETTLE_SECONDS = 60.0
"""Seconds at the beginning of a step in which durations do not count: the caches of new engines are empty,
and conversations that change their engine are computed again."""
OFF: dict[Measure, float] = {"errors": 100.0, "ttft": 1000.0, "tpot": 1000.0, "answers": 100.0}
"""Bound that switches the comparison of a measure off."""


@dataclass(frozen=True, slots=True)
class TrackCounts:
    """Counts how requests were answered by the engines of one revision."""

    attempts: Attempts = field(default_factory=Attempts)
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    texts: Attempts = field(default_factory=Attempts)
    """Texts of the candidate for copies of requests. A text has failed if it differs from the other
    revision's."""
    differences: Histogram = field(default_factory=Histogram)
    """Number of the first token that differs, for each text that has failed, counted by bucket."""

    def __add__(self, other: "TrackCounts") -> "TrackCounts":
        return TrackCounts(
            self.attempts + other.attempts,
            self.ttft + other.ttft,
            self.tpot + other.tpot,
            self.texts + other.texts,
            self.differences + other.differences,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of the candidate and of the other revision, in words for the status."""

    measure: Measure
    candidate: str
    stable: str
    looks: int


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """Holds what the comparison of a candidate with the other revision shows so far in its present step."""

    revision: str
    step: int
    """Index of the step."""
    requests: int = 0
    """Requests that the candidate answered or failed in the step."""
    comparisons: tuple[Comparison, ...] = ()
    alarm: tuple[str, str] | None = None
    """Reason and message why the candidate is worse, with the stated confidence; None = it is not."""


class CandidateTrial:
    """Comparison of one candidate, from its first step to its last.

    Args:
        revision: revision of the candidate.
        analysis: `spec.rollout.canary.analysis`.
        max_different_answers: `spec.rollout.canary.shadow.maxDifferentAnswers`.
    """

    def __init__(
        self, revision: str, analysis: CanaryAnalysis, max_different_answers: float = OFF["answers"]
    ) -> None:
        self.revision, self.analysis, self._max_different = revision, analysis, max_different_answers
        self.terms = revision, analysis, max_different_answers
        """Revision and bounds. A trial with other terms begins anew."""
        self._looks: dict[Measure, int] = dict.fromkeys(MEASURES, 0)
        # The error is shared by the measures that may end the candidate. Texts are compared on request only.
        self._parts = len(MEASURES) - (max_different_answers >= OFF["answers"])
        self._step: int | None = None
        self._begin = 0.0
        self._candidate, self._stable = TrackCounts(), TrackCounts()
        self._next_look: dict[Measure, float] = {}
        self._alarm: tuple[str, str] | None = None

    def observe(self, now: float, step: int, candidate: TrackCounts, stable: TrackCounts) -> CanaryFigures:
        """Add the answers of both revisions since the last call, and compare them if it is time for a look.

        Args:
            now: seconds of a monotonic clock.
            step: index of the step whose weight is in force.
            candidate: answers of the candidate.
            stable: answers of the revision beside it.
        """
        if step != self._step:
            self._step, self._begin = step, now
            self._candidate = self._stable = TrackCounts()
            self._next_look = dict.fromkeys(MEASURES, float(FIRST_LOOK))
        if now - self._begin < SETTLE_SECONDS:
            candidate = replace(candidate, ttft=Histogram(), tpot=Histogram())
            stable = replace(stable, ttft=Histogram(), tpot=Histogram())
        self._candidate += candidate
        self._stable += stable
        for measure in MEASURES:
            if self._alarm is None:
                self._look(measure)
        return CanaryFigures(
            self.revision, step, round(self._candidate.attempts.total), self._comparisons(), self._alarm
        )

    def _look(self, measure: Measure) -> None:
        count, bound = self._count(measure), self._bound(measure)
        if count < self._next_look[measure] or bound >= OFF[measure]:
            return
        self._next_look[measure] = count * LOOK_GROWTH
        self._looks[measure] += 1
        look = self._looks[measure]
        allowed = (1 - self.analysis.confidence / 100) / self._parts / (look * (look + 1))
        if measure == "errors":
            self._compare_errors(bound / 100, allowed)
        elif measure == "answers":
            self._compare_texts(bound / 100, allowed)
        else:
            self._compare_times(measure, bound, allowed)

    def _compare_errors(self, margin: float, allowed: float) -> None:
        new, old = self._candidate.attempts, self._stable.attempts
        if new.failing_samples < MIN_FAILING_SAMPLES or not old.total:
            return
        # The margin is a share of failures that the other revision gets for nothing.
        granted = min(margin * old.total, old.answered)
        if p_value(new, Attempts(old.answered - granted, old.failed + granted)) < allowed:
            self._alarm = ERROR_RATE_ROSE, f"it failed {new} requests, and the revision beside it {old}"

    def _compare_texts(self, bound: float, allowed: float) -> None:
        texts = self._candidate.texts
        if p_value_of_share(texts, bound) < allowed:
            shares = f"{texts} of the greedy or seeded requests that were copied, and {bound:.2%} may differ"
            self._alarm = ANSWERS_DIFFER, f"it wrote another text for {shares}"

    def _compare_times(self, measure: Measure, bound: float, allowed: float) -> None:
        new, old = self._times(measure, self._candidate), self._times(measure, self._stable)
        if new.bounds != old.bounds:
            return
        if p_value_of_longer(new.counts, old.stretched(1 + bound / 100).counts) < allowed:
            reason, what = (TTFT_ROSE, "the first token") if measure == "ttft" else (TPOT_ROSE, "each token")
            self._alarm = (
                reason,
                (
                    f"{what} took more than {bound:g}% longer: a {_median_text(new)}, and with the revision "
                    f"beside it a {_median_text(old)}"
                ),
            )

    def _count(self, measure: Measure) -> float:
        if measure == "errors":
            return self._candidate.attempts.total
        if measure == "answers":
            return self._candidate.texts.total
        return self._times(measure, self._candidate).total

    def _bound(self, measure: Measure) -> float:
        bounds: Mapping[Measure, float] = {
            "errors": self.analysis.max_error_increase,
            "ttft": self.analysis.max_ttft_increase,
            "tpot": self.analysis.max_tpot_increase,
            "answers": self._max_different,
        }
        return bounds[measure]

    def _times(self, measure: Measure, counts: TrackCounts) -> Histogram:
        return counts.ttft if measure == "ttft" else counts.tpot

    def _comparisons(self) -> tuple[Comparison, ...]:
        new, old, looks = self._candidate, self._stable, self._looks
        times = [
            Comparison(
                measure,
                _median_text(self._times(measure, new)),
                _median_text(self._times(measure, old)),
                looks[measure],
            )
            for measure in MEASURES[1:3]
        ]
        errors = Comparison("errors", str(new.attempts), str(old.attempts), looks["errors"])
        if not new.texts.total:
            return (errors, *times)
        text = f"{new.texts} texts differ"
        if new.differences.total:
            text += f", first at token {new.differences.median():.0f} (median)"
        answers = Comparison("answers", text, "the client's answer to the same request", looks["answers"])
        return (errors, *times, answers)


def p_value_of_share(texts: Attempts, bound: float) -> float:
    """Return the one-sided p-value, 0 to 1, of the binomial test that more than `bound` of texts differ."""
    total, different = round(texts.total), round(texts.failed)
    if different <= bound * total:
        return 1.0
    if bound <= 0:
        return 0.0
    probability = 0.0
    for count in range(different, total + 1):
        ways = log_choose(total, count) + count * math.log(bound) + (total - count) * math.log1p(-bound)
        term = math.exp(ways)
        probability += term
        if term < probability * 1e-12:
            # Beyond the likeliest count, each count is less likely than the previous one.
            break
    return min(probability, 1.0)


def new_trial(revision: str, canary: Canary) -> CandidateTrial:
    """Return the trial of a candidate by the bounds of `spec.rollout.canary`."""
    shadow = canary.shadow
    bound = shadow.max_different_answers if shadow is not None else OFF["answers"]
    return CandidateTrial(revision, canary.analysis, bound)


def _median_text(times: Histogram) -> str:
    return f"median of {times.median():.3g} s over {times.total:.0f} answers"
