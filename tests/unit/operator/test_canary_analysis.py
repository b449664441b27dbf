"""A worse candidate is noticed from few requests, and one within the bounds is left alone at every look."""

import math
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from mamba_api import names
from mamba_api.v1alpha1 import CanaryAnalysis
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics, geometric
from mamba_operator.canary.analysis import (
    SETTLE_SECONDS,
    CanaryFigures,
    CandidateTrial,
    TrackCounts,
    p_value_of_share,
)
from mamba_operator.canary.histogram import Histogram, p_value_of_longer
from mamba_operator.canary.state import SHADOW_STEP, CanaryState
from mamba_operator.canary.watch import CanaryWatch, read_counts
from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import DEPLOYMENT, MAMBA_DEPLOYMENT, MAMBA_GATEWAY, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.rollout.attempts import Attempts
from operator_objects import NOW, owner

BOUNDS = (*geometric(0.005, 60.0), math.inf)
PER_LOOK = 200
"""Requests of all clients between two polls."""
WORSE: dict[str, dict[str, float]] = {"errors": {"errors": 0.1}, "ttft": {"ttft": 1.3}, "tpot": {"tpot": 1.3}}
REASONS = {"errors": "ErrorRateRose", "ttft": "TtftRose", "tpot": "TpotRose"}
WEIGHT = 0.05
WORSE_RUNS, GOOD_RUNS = (20, 50) if os.environ.get("MAMBASERVE_GATES") == "large" else (3, 3)


def times(seconds: Any) -> Histogram:
    counts = np.bincount(np.searchsorted(np.array(BOUNDS), seconds), minlength=len(BOUNDS))
    return Histogram(BOUNDS, tuple(map(float, counts)))


def answers(rng: np.random.Generator, count: int, errors: float = 0.0, ttft: float = 1.0,
            tpot: float = 1.0) -> TrackCounts:  # fmt: skip
    failed = int(rng.binomial(count, errors))
    firsts, tokens = (rng.lognormal(0, sigma, count - failed) for sigma in (0.6, 0.3))
    return TrackCounts(
        Attempts(count - failed, failed, 1 if failed else 0),
        times(0.2 * ttft * firsts),
        times(0.02 * tpot * tokens),
    )


def played(
    seed: int,
    analysis: CanaryAnalysis,
    *,
    requests: int = 1000,
    weight: float = 0.05,
    steps: int = 1,
    **worse: float,
) -> CanaryFigures:
    """Return the figures at the alarm, or after a step in which the candidate has answered `requests`."""
    rng, trial, now = np.random.default_rng(seed), CandidateTrial("new", analysis), 0.0
    figures = CanaryFigures("new", 0)
    for step in range(steps):
        figures = CanaryFigures("new", step)
        while figures.alarm is None and figures.requests < requests:
            now += SETTLE_SECONDS / 4
            count = int(rng.binomial(PER_LOOK, WEIGHT))
            new = answers(rng, count, **{"errors": 0.002, **worse})
            figures = trial.observe(now, step, new, answers(rng, PER_LOOK - count, errors=0.002))
        if figures.alarm is not None:
            break
    return figures


@pytest.mark.parametrize("measure", WORSE)
def test_a_worse_candidate_is_noticed_before_a_step_of_a_thousand_requests_ends(measure: str) -> None:
    for seed in range(WORSE_RUNS):
        figures = played(seed, CanaryAnalysis(), **WORSE[measure])
        assert figures.alarm is not None, seed
        assert figures.alarm[0] == REASONS[measure]
        assert figures.requests < 1000


def test_a_candidate_within_the_bounds_is_left_alone() -> None:
    for seed in range(100, 100 + GOOD_RUNS):
        assert played(seed, CanaryAnalysis(), steps=2, errors=0.008, ttft=1.08, tpot=1.08).alarm is None


@pytest.mark.parametrize("measure", WORSE)
def test_a_bound_that_is_off_ends_nothing(measure: str) -> None:
    off = {
        "errors": {"maxErrorIncrease": 100},
        "ttft": {"maxTtftIncrease": 1000},
        "tpot": {"maxTpotIncrease": 1000},
    }
    analysis = CanaryAnalysis.model_validate({key: float(value) for key, value in off[measure].items()})
    assert played(0, analysis, requests=400, **WORSE[measure]).alarm is None


def test_more_confidence_takes_more_requests() -> None:
    least, most = (
        played(3, CanaryAnalysis(confidence=confidence), errors=0.06).requests for confidence in (90.0, 99.99)
    )
    assert least < most


def test_the_looks_of_all_steps_share_one_error() -> None:
    one, three = (played(1, CanaryAnalysis(), requests=100, steps=steps).comparisons for steps in (1, 3))
    assert all(later.looks > earlier.looks > 1 for earlier, later in zip(one, three, strict=True))


def test_one_bad_moment_is_no_fault_of_the_candidate() -> None:
    trial = CandidateTrial("new", CanaryAnalysis())
    burst = TrackCounts(Attempts(20, 80, 1))
    figures = trial.observe(1.0, 0, burst, TrackCounts(Attempts(2000, 0)))
    assert figures.alarm is None
    for now in (2.0, 3.0):
        figures = trial.observe(now, 0, burst, TrackCounts(Attempts(2000, 0)))
    assert figures.alarm is not None


def test_durations_count_once_the_caches_are_warm_and_a_step_is_compared_with_itself_alone() -> None:
    rng, trial = np.random.default_rng(5), CandidateTrial("new", CanaryAnalysis())
    slow, fast = answers(rng, 500, ttft=9.0), answers(rng, 500)
    assert trial.observe(0.0, 0, slow, fast).alarm is None, "conversations that move are computed again"
    assert trial.observe(SETTLE_SECONDS + 1, 0, fast, fast).alarm is None
    # The whole cluster is slower in the next step: so are both revisions.
    trial.observe(SETTLE_SECONDS + 2, 1, TrackCounts(), TrackCounts())
    assert trial.observe(3 * SETTLE_SECONDS, 1, slow, slow).alarm is None
    assert trial.observe(4 * SETTLE_SECONDS, 1, slow + slow, fast).alarm is not None


def test_stretched_durations_are_those_of_slower_answers() -> None:
    rng = np.random.default_rng(2)
    seconds = rng.lognormal(-1, 0.5, 20_000)
    slower, stretched = times(seconds * 1.2), times(seconds).stretched(1.2)
    assert stretched.total == pytest.approx(slower.total)
    assert stretched.median() == pytest.approx(slower.median(), rel=0.01)
    assert p_value_of_longer(slower.counts, stretched.counts) > 0.01
    assert p_value_of_longer(times(seconds * 1.3).counts, stretched.counts) < 1e-6
    assert p_value_of_longer((), ()) == 1.0
    assert times(np.array([100.0])).stretched(2.0).counts[-1] == 1


def texts(equal: int, different: int) -> TrackCounts:
    return TrackCounts(Attempts(equal + different), texts=Attempts(equal, different, 1))


def test_texts_end_a_candidate_where_a_bound_is_set() -> None:
    def alarm(bound: float, equal: int, different: int) -> str | None:
        trial = CandidateTrial("new", CanaryAnalysis(), bound)
        figures = trial.observe(0.0, SHADOW_STEP, texts(equal, different), TrackCounts(Attempts(1000)))
        assert "texts differ" in figures.comparisons[-1].candidate
        return figures.alarm[0] if figures.alarm is not None else None

    assert alarm(100.0, 0, 400) is None, "texts end nothing where no bound is set"
    assert alarm(5.0, 380, 20) is None, "as many may differ"
    assert alarm(5.0, 370, 30) is None, "this may be chance"
    assert alarm(5.0, 340, 60) == "AnswersDiffer"
    assert alarm(0.0, 399, 1) == "AnswersDiffer"


def test_the_share_of_different_texts_is_tested_by_the_binomial() -> None:
    def exact(total: int, least: int, share: float) -> float:
        counts = range(least, total + 1)
        return sum(math.comb(total, one) * share**one * (1 - share) ** (total - one) for one in counts)

    assert p_value_of_share(Attempts(10, 10), 0.3) == pytest.approx(exact(20, 10, 0.3))
    assert p_value_of_share(Attempts(990, 10), 0.005) == pytest.approx(exact(1000, 10, 0.005))
    assert p_value_of_share(Attempts(20, 1), 0.5) == 1.0


class Watched:
    """A canary in its first step, with an engine of each revision and a gateway that counts."""

    def __init__(self) -> None:
        self.key = Key("models", "nano")
        self.metrics: GatewayMetrics | None = None
        self.attempts = {"old": 0, "new": 0}
        self.failed = {"old": 0, "new": 0}
        self.woken: list[Key] = []
        self.seconds = 0.0
        state = CanaryState("new-revision", 0, (NOW - timedelta(hours=1)).isoformat())
        candidate: Manifest = {"metadata": {
            "name": "nano-candidate", "annotations": {names.ANNOTATION_CANARY_STATE: state.annotation()},
        }}  # fmt: skip
        canary = {"steps": [{"weight": 5, "requests": 100}]}
        pods = [
            pod("old", "engine"),
            pod("new", "engine", **{names.LABEL_TRACK: names.CANDIDATE}),
            pod("door", "gateway"),
        ]
        self.by_id: dict[str, dict[Any, list[Manifest]]] = {
            index_id(MAMBA_DEPLOYMENT): {self.key: [owner(rollout={"canary": canary})]},
            index_id(POD): {self.key: pods},
            index_id(DEPLOYMENT): {self.key: [candidate]},
        }  # fmt: skip
        indices = Indices()
        indices.take(self.by_id)
        self.watch = CanaryWatch(indices, self._read, self.woken.append, now=lambda: self.seconds)

    async def _read(self, address: str) -> str | None:
        assert address == "door"
        lines = ["mambaserve_gateway_in_flight 0"]
        for engine, count in self.attempts.items():
            for outcome, value in (("answered", count), ("failed", self.failed[engine])):
                labels = f'endpoint="{engine}",outcome="{outcome}"'
                lines.append(f"mambaserve_gateway_endpoint_attempts_total{{{labels}}} {value}")
        text = self.metrics.render().decode() if self.metrics is not None else ""
        return "\n".join(lines) + "\n" + text.replace("mambaserve_gateway_in_flight 0.0\n", "")

    async def poll(self, *, old: int, new: int, failed: int = 0) -> CanaryFigures | None:
        self.seconds += 5
        self.attempts["old"] += old
        self.attempts["new"] += new - failed
        self.failed["new"] += failed
        await self.watch.poll()
        return self.watch.figures(self.key)


def pod(name: str, component: Any, **labels: str) -> Manifest:
    status = {"phase": "Running", "podIP": name, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "namespace": "models", "labels": {**names.labels("nano", component), **labels}}
    return {"metadata": meta, "status": status}


async def test_the_operator_counts_each_revision_at_the_gateways_from_its_first_look_on() -> None:
    run = Watched()
    first = await run.poll(old=900, new=900)
    assert first is not None
    assert first.requests == 0, "what was counted before belongs to no known time"
    second = await run.poll(old=500, new=99)
    assert second is not None
    assert (second.revision, second.step, second.requests, second.alarm) == ("new-revision", 0, 99, None)
    run.woken.clear()
    await run.poll(old=50, new=1)
    assert run.woken == [run.key], "the requests of the step are reached"


async def test_the_trial_goes_on_over_the_time_in_which_the_engines_of_a_step_start() -> None:
    run = Watched()
    for _ in range(3):
        await run.poll(old=300, new=40)
    [child] = run.by_id[index_id(DEPLOYMENT)][run.key]
    looks = [one.looks for one in run.watch.figures(run.key).comparisons]  # type: ignore[union-attr]
    for since in (None, (NOW - timedelta(minutes=5)).isoformat()):
        state = CanaryState("new-revision", 1, since)
        child["metadata"]["annotations"][names.ANNOTATION_CANARY_STATE] = state.annotation()
        await run.poll(old=300, new=40)
    figures = await run.poll(old=300, new=40)
    assert figures is not None
    assert (figures.step, figures.requests) == (1, 40), "the wait for engines belongs to no step"
    assert figures.comparisons[0].looks == looks[0] + 1, "all steps share one error"


async def test_gateways_of_a_shared_address_are_read_where_they_serve_the_deployment() -> None:
    run = Watched()
    run.by_id[index_id(POD)][run.key] = [
        one for one in run.by_id[index_id(POD)][run.key] if one["metadata"]["name"] != "door"
    ]
    for name, address in (("team", "door"), ("others", "never asked")):
        served = [{"name": "chat", "deployment": "nano" if name == "team" else "another"}]
        team, gateway = Key("models", name, "MambaGateway"), pod(address, "gateway")
        run.by_id.setdefault(index_id(MAMBA_GATEWAY), {})[team] = [
            {"metadata": {"name": name}, "status": {"models": served}}
        ]
        run.by_id[index_id(POD)][team] = [gateway]
    for _ in range(5):
        figures = await run.poll(old=300, new=30, failed=6)
    assert figures is not None
    assert figures.alarm is not None
    assert figures.alarm[0] == "ErrorRateRose"


async def test_a_candidate_that_fails_requests_wakes_the_operator_and_ends_with_its_deployment() -> None:
    run = Watched()
    for _ in range(5):
        figures = await run.poll(old=300, new=30, failed=6)
    assert figures is not None
    assert figures.alarm is not None
    assert figures.alarm[0] == "ErrorRateRose"
    run.by_id[index_id(DEPLOYMENT)][run.key] = []
    await run.watch.poll()
    assert run.watch.figures(run.key) is None


def test_the_operator_reads_the_times_that_a_gateway_writes() -> None:
    metrics = GatewayMetrics(lambda: ())
    record: Callable[..., None] = metrics.time_answer
    for _ in range(3):
        record("nano", candidate=True, first=0.3, rest=1.0, tokens=11)
    record("nano", candidate=False, first=0.2, rest=1.0, tokens=21)
    record("another at this gateway", candidate=True, first=30.0, rest=1.0, tokens=1)
    counts = read_counts(metrics.render().decode(), "nano")
    assert counts.ttft[names.CANDIDATE].total == 3
    assert counts.ttft[names.CANDIDATE].median() == pytest.approx(0.3, rel=0.1)
    assert counts.tpot[names.STABLE].median() == pytest.approx(0.05, rel=0.1)
    assert counts.ttft[names.STABLE].bounds == BOUNDS


def test_the_operator_reads_the_copies_that_a_gateway_compares() -> None:
    metrics = GatewayMetrics(lambda: ())
    for deployment, failed in (("nano", 2), ("another", 50)):
        for track, outcome, count in (
            ("stable", "answered", 9 + failed), ("candidate", "answered", 9), ("candidate", "failed", failed),
        ):  # fmt: skip
            metrics.shadow_answer(deployment, track, outcome).inc(count)
        for result in ("equal", "different"):
            metrics.shadow_text(deployment, result).inc(failed)
        metrics.shadow_difference(deployment).observe(12)
    counts = read_counts(metrics.render().decode(), "nano")
    assert counts.copies[names.CANDIDATE] == Attempts(9, 2)
    assert counts.copies[names.STABLE] == Attempts(11)
    assert counts.texts == Attempts(2, 2)
    assert counts.differences.total == 1
    assert 8 < counts.differences.median() <= 16


async def test_copies_are_compared_with_the_answers_to_the_same_requests_alone() -> None:
    run = Watched()
    [candidate] = run.by_id[index_id(DEPLOYMENT)][run.key]
    state = CanaryState("new-revision", SHADOW_STEP, (NOW - timedelta(hours=1)).isoformat())
    candidate["metadata"]["annotations"][names.ANNOTATION_CANARY_STATE] = state.annotation()
    canary = {"shadow": {"percent": 5, "requests": 40}, "steps": [{"weight": 5}]}
    run.by_id[index_id(MAMBA_DEPLOYMENT)][run.key] = [owner(rollout={"canary": canary})]
    run.metrics = GatewayMetrics(lambda: ())
    for _ in range(5):
        run.metrics.shadow_answer("nano", "stable", "answered").inc(10)
        run.metrics.shadow_answer("nano", "candidate", "failed").inc(10)
        shown = await run.poll(old=300, new=0)
    assert shown is not None
    assert (shown.step, shown.requests) == (SHADOW_STEP, 40)
    assert shown.alarm is not None
    assert "30 of 30" in shown.alarm[1]
    assert "0 of 30" in shown.alarm[1], "300 other requests of the clients say nothing about copies"
