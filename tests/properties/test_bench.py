"""Properties of the load generator's pure parts."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_cli.bench.arrivals import constant, poisson
from mamba_cli.bench.prompts import LOWEST_ID, LengthRange, blocks, random_prompts, tokens
from mamba_cli.bench.samples import LatencyLimits, Sample, peak, percentile, report
from mamba_cli.bench.traces import Arrival, replay

budget = settings(max_examples=40)
seconds = st.floats(0, 1e4)
rates = st.floats(1e-3, 1e4)


@budget
@given(rates, st.integers(0, 200), st.integers())
def test_arrivals_start_at_zero_and_never_go_back(rate, count, seed) -> None:
    for times in (list(poisson(rate, count, Random(seed))), list(constant(rate, count))):
        assert len(times) == count
        assert times[:1] == [0.0][:count]
        assert all(before <= after for before, after in pairwise(times))


@budget
@given(st.lists(seconds, min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_agree_with_numpy(values, rank) -> None:
    assert percentile(sorted(values), rank) == pytest.approx(float(np.percentile(values, rank)), abs=1e-6)


@budget
@given(st.text(max_size=20), st.integers(0, 300), st.integers(0, 300), st.integers(LOWEST_ID + 1, 200_000))
def test_a_longer_draw_begins_with_the_shorter_one(name, one, two, vocab) -> None:
    long, short = tokens(name, max(one, two), vocab), tokens(name, min(one, two), vocab)
    assert long[: len(short)] == short
    assert all(LOWEST_ID <= token < vocab for token in long)


ids = st.lists(st.integers(0, 5), max_size=5).map(tuple)


@budget
@given(ids, ids, st.integers(1, 3000), st.integers(1, 3000))
def test_prompts_share_at_least_the_blocks_they_have_in_common(one, two, first, second) -> None:
    left, right = blocks(one, first, 256), blocks(two, second, 256)
    assert (len(left), len(right)) == (first, second)
    same = next(
        (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
    shared = min(512 * same, first, second)
    assert left[:shared] == right[:shared]


@budget
@given(
    st.integers(1, 20),
    st.integers(1, 200),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_random_prompts_have_their_lengths_and_are_repeatable(
    count, mean, spread, shared, groups, seed
) -> None:
    def make():
        lengths = LengthRange(mean, spread)
        return list(random_prompts(count, lengths, lengths, 256, shared=shared, groups=groups, seed=seed))

    made = make()
    assert made == make()
    low, high = max(1, mean - int(mean * spread)), mean + int(mean * spread)
    assert all(low <= len(p.token_ids) <= high and low <= p.output_tokens <= high for p in made)


arrivals = st.builds(Arrival, seconds, st.integers(0, 2000), st.integers(0, 100), ids)


@budget
@given(st.lists(arrivals, max_size=10), st.floats(0.01, 100), st.integers(1, 12), st.integers(1, 600))
def test_a_replay_keeps_order_limit_and_lengths(found, speed, limit, longest) -> None:
    found.sort(key=lambda arrival: arrival.at)
    made = list(replay(found, 256, speed=speed, limit=limit, max_input=longest))
    assert len(made) == min(limit, len(found))
    for prompt, arrival in zip(made, found, strict=False):
        assert prompt.at == pytest.approx(arrival.at / speed)
        assert len(prompt.token_ids) == max(1, min(arrival.input_tokens, longest))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    sent, lasts = draw(seconds), draw(seconds)
    return Sample(
        sent=sent,
        end=sent + lasts,
        ttft=draw(st.none() | st.floats(0, lasts)),
        prompt_tokens=draw(st.integers(0, 100)),
        output_tokens=draw(st.integers(0, 100)),
        error=draw(st.sampled_from([None, None, "timeout", "429"])),
    )


limits = st.none() | st.floats(0, 1e4)


@budget
@given(st.lists(samples(), max_size=20), st.builds(LatencyLimits, limits, limits, limits))
def test_a_report_adds_up_and_goodput_never_exceeds_what_went_well(found, slo) -> None:
    made = report(found, slo)
    counts = made["requests"]
    assert counts["ok"] + counts["failed"] == counts["sent"] == len(found)
    assert sum(counts["errors"].values()) == counts["failed"]
    assert 0 <= made["goodput"]["met"] <= counts["ok"]
    assert 0 <= made["goodput"]["attainment"] <= 1
    looser = report(found, LatencyLimits(slo.ttft, None, None))
    assert made["goodput"]["met"] <= looser["goodput"]["met"]


@budget
@given(st.lists(samples(), max_size=20))
def test_the_most_at_once_is_at_most_all_and_at_least_one(found) -> None:
    assert min(1, sum(s.end > s.sent for s in found)) <= peak(found) <= len(found)
