"""Rows of a step grouped by what they ask for: each group names its rows, nobody pays for another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_kernels.sample.noise import seed_words
from mamba_server.cache.node import NO_TOKENS
from mamba_server.engine.execution.sampling_batch import Filter, SamplingBatch, SamplingRow, TokenEntries
from mamba_server.wire import SamplingParams

CPU = torch.device("cpu")
VOCAB = 50


def row(
    *, counts_row: int = -1, prompt_len: int = 3, seed: int = 0, blocked: tuple[int, ...] = (), **params: Any
) -> SamplingRow:
    wanted = SamplingParams(max_tokens=9, **{"temperature": 0.0, **params})
    return SamplingRow(wanted, seed, prompt_len, 0, counts_row, NO_TOKENS, blocked)


def build(*rows: SamplingRow) -> SamplingBatch:
    return SamplingBatch.build(rows, VOCAB, CPU)


def entries(found: TokenEntries | None) -> list[tuple[int, int, float]]:
    assert found is not None
    return list(zip(found.rows.tolist(), found.tokens.tolist(), found.values.tolist(), strict=True))


def column(found: Filter | None) -> dict[int, float]:
    """Place -> parameter."""
    assert found is not None
    assert found.values.shape == (len(found.rows), 1)
    return dict(zip(found.rows.tolist(), found.values[:, 0].tolist(), strict=True))


def test_greedy_rows_without_wishes_need_nothing() -> None:
    batch = build(row(), row(top_k=5, top_p=0.5, min_p=0.1))
    assert batch.size == 2
    for name in ("bias", "minimum", "penalties", "random", "temperature", "words", "min_p", "top_k", "top_p"):
        assert getattr(batch, name) is None, name
    assert (batch.logprobs, batch.logprobs_max, batch.top_k_max) == (None, 0, 0)


def test_an_empty_step_is_a_batch_too() -> None:
    batch = build()
    assert (batch.size, batch.random, batch.logprobs) == (0, None, None)


def test_filters_hold_places_among_the_random_rows_and_not_rows() -> None:
    batch = build(
        row(), row(temperature=0.5, top_p=0.9), row(top_p=0.1), row(temperature=2.0, min_p=0.25, top_k=7),
    )  # fmt: skip
    assert batch.random is not None
    assert batch.temperature is not None
    assert batch.random.tolist() == [1, 3]
    assert batch.temperature.tolist() == [[0.5], [2.0]]
    assert column(batch.top_p) == {0: pytest.approx(0.9)}
    assert column(batch.min_p) == {1: 0.25}
    assert column(batch.top_k) == {1: 7}


@pytest.mark.parametrize(
    ("top_k", "filtered"), [(0, False), (1, True), (49, True), (50, False), (10**9, False)]
)
def test_as_many_best_as_there_are_tokens_is_no_filter(top_k: int, filtered: bool) -> None:
    batch = build(row(temperature=1.0, top_k=top_k))
    assert (batch.top_k is not None) == filtered


@pytest.mark.parametrize(
    ("name", "value"), [("top_p", 1.0), ("min_p", 0.0), ("top_k", 0), ("min_tokens", 0), ("logit_bias", {})]
)
def test_a_neutral_value_is_no_group(name: str, value: Any) -> None:
    batch = build(row(temperature=1.0, blocked=(7,), **{name: value}))
    assert (batch.top_p, batch.min_p, batch.top_k, batch.minimum, batch.bias) == (None,) * 5


def test_bias_of_tokens_that_do_not_exist_is_left_out() -> None:
    batch = build(row(logit_bias={-1: 9.0, 0: 1.0, 49: -2.0, 50: 9.0, 2**31: 9.0}), row(logit_bias={3: 4.0}))
    assert entries(batch.bias) == [(0, 0, 1.0), (0, 49, -2.0), (1, 3, 4.0)]
    assert build(row(logit_bias={50: 9.0})).bias is None


def test_blocked_tokens_are_free_from_the_position_after_the_minimum() -> None:
    batch = build(
        row(min_tokens=4, prompt_len=10, blocked=(7, 9)), row(blocked=(7,)), row(min_tokens=1, blocked=()),
    )  # fmt: skip
    assert entries(batch.minimum) == [(0, 7, 14.0), (0, 9, 14.0)]


def test_penalties_bring_their_owners_in_the_order_of_the_rows() -> None:
    plain = row()
    strong = row(counts_row=4, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-1.0)
    weak = row(counts_row=2, presence_penalty=0.25)
    batch = build(strong, plain, weak)
    penalties = batch.penalties
    assert penalties is not None
    assert batch.counted == [strong, weak]
    assert (penalties.rows.tolist(), penalties.counts_rows.tolist()) == ([0, 2], [4, 2])
    assert penalties.repetition.tolist() == [[1.5], [1.0]]
    assert penalties.presence.tolist() == [[0.5], [0.25]]
    assert penalties.frequency.tolist() == [[-1.0], [0.0]]


def test_the_most_alternatives_asked_for_are_made_for_the_rows_that_asked() -> None:
    batch = build(row(logprobs=2), row(), row(logprobs=0), row(logprobs=5))
    assert batch.logprobs is not None
    assert (batch.logprobs.tolist(), batch.logprobs_max) == ([0, 2, 3], 5)
    assert build(row(logprobs=0)).logprobs_max == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            row,
            temperature=st.sampled_from([0.0, 0.5, 1.0]),
            top_p=st.sampled_from([0.5, 1.0]),
            top_k=st.sampled_from([0, 3, 60]),
            seed=st.integers(0, 2**64),
            counts_row=st.sampled_from([-1, 0, 1]),
            logprobs=st.integers(-1, 3),
        ),
        max_size=8,
    )
)
def test_every_row_is_in_the_groups_it_asks_for_and_in_no_other(rows: list[SamplingRow]) -> None:
    batch = build(*rows)
    random = [] if batch.random is None else batch.random.tolist()
    assert random == [at for at, each in enumerate(rows) if each.params.temperature > 0]
    if batch.words is not None:
        assert batch.words.tolist() == [list(seed_words(rows[at].seed)) for at in random]
    of_p = [] if batch.top_p is None else [random[place] for place in batch.top_p.rows.tolist()]
    assert of_p == [at for at in random if rows[at].params.top_p < 1]
    of_k = [] if batch.top_k is None else [random[place] for place in batch.top_k.rows.tolist()]
    assert of_k == [at for at in random if rows[at].params.top_k == 3]
    if of_k:
        assert batch.top_k_max >= 3
    penalized = [] if batch.penalties is None else batch.penalties.rows.tolist()
    assert penalized == [at for at, each in enumerate(rows) if each.counts_row >= 0]
