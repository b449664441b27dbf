"""`CanaryWatch`: polls gateways for the answers of candidates and of the revisions beside them.

Wired by `main`. `CandidateTrial` compares the answers, and a pass decides by the figures (`decision`). A
restarted operator begins its counts anew.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1 import Canary
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.pod_reports import pod_reports
from mamba_operator.autoscale.reports import ReportInvalid, Sample, series
from mamba_operator.canary.analysis import CanaryFigures, CandidateTrial, TrackCounts, new_trial
from mamba_operator.canary.decision import stage_of
from mamba_operator.canary.histogram import Histogram
from mamba_operator.canary.state import SHADOW_STEP, CanaryState, state_in
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, name_of, section
from mamba_operator.objects.pod_poller import PodPoller
from mamba_operator.objects.pod_trouble import is_candidate, is_engine
from mamba_operator.objects.serving_gateways import serving_gateways
from mamba_operator.rollout.attempts import Attempts, AttemptsByEngine, increase
from mamba_operator.rollout.watch import read_attempts

POLL_SECONDS = 5.0
"""Seconds between two polls."""
_TTFT = "mambaserve_gateway_canary_time_to_first_token_seconds_bucket"
_TPOT = "mambaserve_gateway_canary_time_per_output_token_seconds_bucket"
_COPIES = "mambaserve_gateway_shadow_answers_total"
_TEXTS = "mambaserve_gateway_shadow_texts_total"
_DIFFERENCES = "mambaserve_gateway_shadow_first_difference_tokens_bucket"
Times = Mapping[str, Histogram]
"""Histogram by track: `candidate` or `stable`."""


@dataclass(frozen=True, slots=True)
class GatewayCounts:
    """Holds what one gateway has counted of both revisions since its start."""

    attempts: AttemptsByEngine
    ttft: Times
    tpot: Times
    copies: Mapping[str, Attempts]
    """Answers to requests of which there is a copy, by track."""
    texts: Attempts
    """Texts for copies of requests. A text has failed if it differs from the other revision's."""
    differences: Histogram
    """Number of the first token that differs, for each text that has failed, counted by bucket."""


def read_counts(text: str, deployment: str) -> GatewayCounts:
    """Return the counts of a gateway for one deployment; the gateway may serve several.

    Raises ReportInvalid.
    """
    by_name = series(text, frozenset((_TTFT, _TPOT, _COPIES, _TEXTS, _DIFFERENCES)))
    ttft, tpot, copies, texts, differences = (
        # A gateway of an earlier version has no such label, and serves one deployment.
        [sample for sample in by_name.get(name, ()) if sample[0].get("deployment", "") in ("", deployment)]
        for name in (_TTFT, _TPOT, _COPIES, _TEXTS, _DIFFERENCES)
    )
    return GatewayCounts(
        read_attempts(text),
        _by_track(ttft),
        _by_track(tpot),
        {track: _sum(copies, "outcome", "failed", track=track) for track in (names.CANDIDATE, names.STABLE)},
        _sum(texts, "result", "different"),
        _by_track(differences).get("", Histogram()),
    )


def _sum(samples: Iterable[Sample], label: str, failure: str, **labels: str) -> Attempts:
    """Return the counts with these labels, of which those with `label` = `failure` have failed."""
    total = Attempts()
    for names_of, value in samples:
        if labels.items() <= names_of.items():
            total += Attempts(failed=value) if names_of.get(label) == failure else Attempts(answered=value)
    return total


def _by_track(samples: Iterable[Sample]) -> Times:
    buckets: dict[str, dict[float, float]] = {}
    for labels, value in samples:
        try:
            bound = float(labels.get("le", ""))
        except ValueError as error:
            raise ReportInvalid("a bucket has no bound") from error
        buckets.setdefault(labels.get("track", ""), {})[bound] = value
    return {track: Histogram.of_cumulative(counts) for track, counts in buckets.items()}


@dataclass(frozen=True, slots=True)
class _Selection:
    """A canary that is under way, to be polled."""

    canary: Canary
    state: CanaryState
    tracks: Mapping[str, str]
    """Track of each engine pod, by its name."""
    gateways: tuple[Manifest, ...]


class _Progress:
    """Holds, between two polls, the trial of one candidate and the last counts of gateways."""

    def __init__(self, trial: CandidateTrial) -> None:
        self.trial = trial
        self.figures: CanaryFigures | None = None
        self.last: dict[str, GatewayCounts] = {}

    def increase(
        self, selection: _Selection, reports: Mapping[str, GatewayCounts | None]
    ) -> dict[str, TrackCounts]:
        """Return the answers of each track since the last reports of the gateways, by track."""
        sums = {names.CANDIDATE: TrackCounts(), names.STABLE: TrackCounts()}
        for gateway, counts in reports.items():
            before = self.last.get(gateway)
            if counts is None:
                continue
            self.last[gateway] = counts
            if before is None:
                # The time over which this gateway counted is unknown.
                continue
            for track in sums:
                sums[track] += TrackCounts(
                    _answers(track, selection, before, counts),
                    _more(track, before.ttft, counts.ttft),
                    _more(track, before.tpot, counts.tpot),
                )
            sums[names.CANDIDATE] += TrackCounts(
                texts=increase(before.texts, counts.texts),
                differences=counts.differences.since(before.differences),
            )
        return sums


def _answers(track: str, selection: _Selection, before: GatewayCounts, now: GatewayCounts) -> Attempts:
    """Return the answers and failures of a track at one gateway since `before`.

    In the phase of copies only copies and their originals count, in a step the requests of clients.
    """
    if selection.state.step == SHADOW_STEP:
        return increase(before.copies[track], now.copies[track])
    total = Attempts()
    for pod, counts in now.attempts.items():
        if selection.tracks.get(pod) == track:
            total += increase(before.attempts.get(pod, Attempts()), counts)
    return total


def _more(track: str, before: Times, now: Times) -> Histogram:
    current = now.get(track, Histogram())
    return current.since(before[track]) if track in before else current


class CanaryWatch(PodPoller[_Selection, _Progress]):
    """The part of the operator that polls gateways about candidates. One instance per active operator.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        read: reads the `/metrics` of a pod.
        wake: called with each deployment whose canary may go on, or has to end.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self, indices: Indices, read: ReadMetrics, wake: Callable[[Key], None], *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(indices, wake, period=POLL_SECONDS, failure_event="canary_poll_failed", now=now)
        self._read = read

    def figures(self, key: Key) -> CanaryFigures | None:
        """Return the results of the comparison; None without a candidate, or before the first poll."""
        progress = self._reports.get(key)
        return progress.figures if progress is not None else None

    def _select(self, key: Key) -> _Selection | None:
        candidate = names.Children(key.name).candidate
        child = next((one for one in self._indices.of(DEPLOYMENT, key) if name_of(one) == candidate), None)
        state = state_in(child)
        if state is None:
            return None
        canary = next(filter(None, map(_canary_of, self._indices.of(MAMBA_DEPLOYMENT, key))), None)
        if canary is None:
            return None
        pods = self._indices.of(POD, key)
        tracks = {
            name_of(pod): names.CANDIDATE if is_candidate(pod) else names.STABLE
            for pod in pods
            if is_engine(pod)
        }
        return _Selection(canary, state, tracks, tuple(serving_gateways(self._indices, key)))

    async def _update(self, key: Key, selection: _Selection) -> bool:
        state, canary = selection.state, selection.canary
        progress, trial = self._reports.get(key), new_trial(state.revision, canary)
        if state.since is None:
            # The weight of another step is in force. The trial stays, because all steps share one error.
            if progress is not None:
                progress.last = {}
            return False
        if progress is None or progress.trial.terms != trial.terms:
            progress = self._reports[key] = _Progress(trial)
        reports = await pod_reports(self._read, selection.gateways, lambda text: read_counts(text, key.name))
        sums = progress.increase(selection, reports)
        before = progress.figures
        progress.figures = figures = progress.trial.observe(
            self._now(), state.step, sums[names.CANDIDATE], sums[names.STABLE]
        )
        target = stage_of(canary, state.step).requests if state.step < len(canary.steps) else None
        reached = target is not None and figures.requests >= target
        return figures.alarm is not None or reached or before is None


def _canary_of(owner: Any) -> Canary | None:
    """Return `spec.rollout.canary` of a stored object; None if it has none, or an invalid one."""
    raw = section(section(owner, "spec"), "rollout").get("canary")
    try:
        return Canary.model_validate(raw, by_alias=True, by_name=False) if raw is not None else None
    except ValidationError:
        return None
