"""From what engines count to the traffic of a window, and what of that is shown."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.v1alpha1 import WorkloadStatus
from mamba_operator.autoscale.reports import ReportInvalid
from mamba_operator.workload.measured_workload import (
    DECAY_SECONDS,
    MIN_REQUESTS,
    EngineCounts,
    MeasuredWorkload,
    TrafficWindow,
    advanced,
    engine_counts,
    measured_workload,
    window_of,
)
from mamba_operator.workload.workload_status import (
    SELDOM,
    differs_clearly,
    recorded_workload,
    workload_status,
)
from metrics_of_pods import CountingEngine, gateway_text
from operator_objects import NOW

NOTHING = EngineCounts(0, 0, 0, 0, 0, 0.0, 0.0)
CHAT = MeasuredWorkload(1000.0, 200.0, 0.5, 12.0, 500.0)
numbers = st.floats(0, 1e9, allow_nan=False)
counts = st.builds(
    EngineCounts, prompts=numbers, prompt_tokens=numbers, answers=numbers, output_tokens=numbers,
    present=st.floats(0, 1000), admitted_tokens=st.one_of(st.none(), numbers),
    shared_tokens=st.one_of(st.none(), numbers),
)  # fmt: skip


def counted(requests: float, prompt: float = 1000, output: float = 200, shared: float = 0.5) -> EngineCounts:
    tokens = requests * prompt
    return EngineCounts(requests, tokens, requests, requests * output, 12, tokens, tokens * shared)


def served(requests: float, seconds: float = 600.0) -> TrafficWindow:
    return advanced(TrafficWindow(), {"a": NOTHING}, {"a": counted(requests)}, seconds)


def test_the_text_of_an_engine_says_what_it_served() -> None:
    engine = CountingEngine()
    engine.running = 3
    engine.serve(10, 400, 50, 0.25)

    assert engine_counts(engine.text()) == EngineCounts(10, 4000, 10, 500, 3, 4000, 1000)


def test_an_engine_without_a_memory_of_prompts_says_all_but_what_they_share() -> None:
    engine = CountingEngine()
    engine.serve(10, 400, 50, None)

    found = engine_counts(engine.text())
    assert (found.prompt_tokens, found.admitted_tokens, found.shared_tokens) == (4000, None, None)


@pytest.mark.parametrize("text", ["", "mambaserve_requests_running 1\n", "{", gateway_text(in_flight=0)])
def test_what_is_no_engines_text_is_refused(text: str) -> None:
    with pytest.raises(ReportInvalid):
        engine_counts(text)


def test_means_are_those_of_requests_and_of_time() -> None:
    before = {"a": NOTHING, "b": NOTHING}
    now = {"a": counted(300, prompt=100, shared=1.0), "b": counted(100, prompt=500, output=600, shared=0.0)}
    found = measured_workload(advanced(TrafficWindow(), before, now, 60.0))

    assert found is not None
    assert found.prompt_tokens == pytest.approx((300 * 100 + 100 * 500) / 400)
    assert found.output_tokens == pytest.approx((300 * 200 + 100 * 600) / 400)
    assert found.shared_prefix_ratio == pytest.approx(30_000 / 80_000)
    assert found.concurrency == pytest.approx(6.0), "twelve at the end and none at the beginning"
    assert found.requests == 400


def test_too_few_requests_or_answers_say_nothing() -> None:
    assert measured_workload(TrafficWindow()) is None
    assert measured_workload(served(MIN_REQUESTS - 1)) is None
    assert measured_workload(served(MIN_REQUESTS)) is not None
    unanswered = replace(counted(1000), answers=10)
    assert measured_workload(advanced(TrafficWindow(), {"a": NOTHING}, {"a": unanswered}, 60.0)) is None


def test_what_was_counted_fades_and_then_says_nothing() -> None:
    window = served(1000)
    later = advanced(window, {"a": counted(1000)}, {"a": counted(1000)}, DECAY_SECONDS)

    assert later.prompts == pytest.approx(1000 / math.e)
    assert measured_workload(advanced(later, {}, {}, DECAY_SECONDS)) is None


def test_other_traffic_takes_over_within_a_window_or_two() -> None:
    window, before = TrafficWindow(), NOTHING
    for number in range(120):
        prompt = 1000 if number < 60 else 5000
        now = EngineCounts(
            before.prompts + 50, before.prompt_tokens + 50 * prompt, before.answers + 50,
            before.output_tokens + 50 * 200, 12,
        )  # fmt: skip
        window, before = advanced(window, {"a": before}, {"a": now}, 60.0), now
    found = measured_workload(window)

    assert found is not None
    assert 4200 < found.prompt_tokens < 5000
    assert found.shared_prefix_ratio is None


def test_an_engine_that_started_anew_counts_from_zero_and_one_just_seen_counts_nothing() -> None:
    again = advanced(TrafficWindow(), {"a": counted(9000, prompt=1)}, {"a": counted(400)}, 60.0)
    found = measured_workload(again)
    assert found is not None
    assert found.prompt_tokens == 1000

    assert advanced(TrafficWindow(), {}, {"a": counted(400)}, 60.0) == TrafficWindow()


def test_a_share_that_hardly_any_engine_tells_is_not_known() -> None:
    silent = replace(counted(900), admitted_tokens=None, shared_tokens=None)
    mixed = advanced(TrafficWindow(), {"a": NOTHING, "b": NOTHING}, {"a": counted(100), "b": silent}, 60.0)
    found = measured_workload(mixed)

    assert found is not None
    assert found.shared_prefix_ratio is None


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), counts), st.floats(-1e4, 1e5)), max_size=8))
def test_whatever_engines_say_and_clocks_do_what_is_measured_is_within_bounds(
    looks: list[tuple[dict[str, EngineCounts], float]],
) -> None:
    window, before = TrafficWindow(), dict[str, EngineCounts]()
    for now, passed in looks:
        window, before = advanced(window, before, now, passed), now
        found = measured_workload(window)
        if found is not None:
            assert found.requests >= MIN_REQUESTS
            assert min(found.prompt_tokens, found.output_tokens, found.concurrency) >= 0
            assert found.shared_prefix_ratio is None or 0 <= found.shared_prefix_ratio <= 1
            shown = workload_status(None, found, NOW)
            assert shown is not None
            again = WorkloadStatus.model_validate(shown.manifest(), by_alias=True, by_name=False)
            assert again == shown, "as an API server keeps it"


# --- what is shown -----------------------------------------------------------------------------------------


def shown(measured: MeasuredWorkload = CHAT) -> WorkloadStatus:
    found = workload_status(None, measured, NOW)
    assert found is not None
    return found


LATER = NOW + timedelta(seconds=SELDOM)


def test_what_is_shown_is_rounded() -> None:
    found = shown(MeasuredWorkload(1234.5, 56.7, 0.533, 7.2, 4321.0))

    assert (found.prompt_tokens, found.output_tokens, found.shared_prefix_ratio) == (1200, 57, 0.55)
    assert (found.concurrency, found.requests) == (8, 4300)
    assert found.since == found.time == "2026-01-02T12:00:00Z"


def test_noise_changes_nothing_that_is_shown() -> None:
    for ratio in (0.93, 1.0, 1.07):
        near = MeasuredWorkload(1000 * ratio, 200 / ratio, 0.5 + (ratio - 1) / 2, 12 * ratio, 500 * ratio)
        assert workload_status(shown(), near, LATER) == shown()


@pytest.mark.parametrize(
    "changed",
    [
        replace(CHAT, prompt_tokens=1200.0), replace(CHAT, output_tokens=100.0),
        replace(CHAT, shared_prefix_ratio=0.6), replace(CHAT, shared_prefix_ratio=None),
        replace(CHAT, concurrency=20.0), replace(CHAT, requests=5000.0),
    ],
    ids=["prompts", "outputs", "shared", "not known", "concurrency", "requests"],
)  # fmt: skip
def test_what_matters_is_shown_and_not_too_often(changed: MeasuredWorkload) -> None:
    assert workload_status(shown(), changed, NOW + timedelta(seconds=SELDOM - 1)) == shown()

    found = workload_status(shown(), changed, LATER)
    assert found is not None
    assert found != shown()
    assert (found.since, found.time) == ("2026-01-02T12:00:00Z", "2026-01-02T12:05:00Z")


def test_after_a_clock_was_set_back_it_is_shown_all_the_same() -> None:
    found = workload_status(shown(), replace(CHAT, prompt_tokens=5000.0), NOW - timedelta(days=1))

    assert found is not None
    assert found.prompt_tokens == 5000


def test_what_was_shown_stays_while_nothing_is_measured() -> None:
    assert workload_status(shown(), None, LATER) == shown()
    assert workload_status(None, None, LATER) is None


@given(
    st.builds(
        MeasuredWorkload, st.floats(1, 1e6), st.floats(1, 1e5), st.one_of(st.none(), st.floats(0, 1)),
        st.floats(0, 500), st.floats(MIN_REQUESTS, 1e6),
    )
)  # fmt: skip
def test_what_was_just_shown_is_not_shown_anew_and_carries_another_operator_on(
    measured: MeasuredWorkload,
) -> None:
    first = shown(measured)

    assert workload_status(first, measured, LATER) == first
    carried = measured_workload(window_of(recorded_workload(first)))
    assert carried is not None
    assert not differs_clearly(recorded_workload(first), carried)
