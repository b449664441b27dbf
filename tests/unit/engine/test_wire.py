"""The seam between the two processes: what goes in comes out, and each side refuses the other's words."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_server import wire

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=8)

params = st.builds(
    wire.SamplingParams,
    max_tokens=st.integers(1, 2**20),
    temperature=FLOATS,
    top_k=st.integers(0, 1000),
    top_p=FLOATS,
    min_p=FLOATS,
    seed=st.none() | INT64,
    repetition_penalty=FLOATS,
    logit_bias=st.dictionaries(st.integers(0, 2**31), FLOATS, max_size=4),
    min_tokens=st.integers(0, 100),
    ignore_eos=st.booleans(),
    stop_token_ids=TOKENS.map(tuple),
    logprobs=st.integers(-1, 20),
    prompt_logprobs=st.integers(-1, 20),
)
json = st.recursive(
    st.none() | st.booleans() | INT64 | FLOATS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
bodies = st.dictionaries(st.text(max_size=8), json, max_size=4)
logprobs = st.builds(
    wire.TokenLogprobs, st.integers(0, 9), FLOATS, TOKENS.map(tuple), st.lists(FLOATS, max_size=4).map(tuple)
)
deltas = st.builds(
    wire.SequenceDelta,
    st.text(),
    st.integers(0, 127),
    TOKENS,
    logprobs=st.none() | st.lists(logprobs, max_size=2),
    finish_reason=st.sampled_from([None, "stop", "length", "abort", "error"]),
    stop_token_id=st.none() | st.integers(0, 9),
    cached_tokens=st.integers(0, 2**20),
    prompt_logprobs=st.none() | st.lists(st.none() | logprobs, max_size=3),
)
to_engine = st.one_of(
    st.builds(
        wire.AddRequest, st.text(), TOKENS.map(wire.TokenIds), params, n=st.integers(1, 128), priority=INT64,
        cache_salt=st.text(), turn_boundary=st.integers(0, 100), arrival=FLOATS, traceparent=st.text(),
    ),
    st.builds(wire.StopSequence, st.text(), st.integers(0, 127), st.integers(0, 2**20)),
    st.builds(wire.AbortRequest, st.text()),
    st.builds(wire.AdminCall, INT64, st.text(), bodies),
    st.just(wire.Shutdown()),
)  # fmt: skip
from_engine = st.one_of(
    st.builds(wire.Progress, st.text(), INT64, INT64),
    st.builds(wire.Ready, INT64, INT64, TOKENS.map(tuple), bodies),
    st.builds(wire.Outputs, st.lists(deltas, max_size=3)),
    st.builds(
        wire.RequestRejected, st.text(), st.integers(400, 599), st.text(), st.text(), st.text(),
        st.none() | FLOATS,
    ),
    st.builds(
        wire.EngineStats, st.dictionaries(st.text(), FLOATS, max_size=3),
        st.dictionaries(st.text(), FLOATS, max_size=3),
        st.lists(st.tuples(FLOATS, FLOATS, FLOATS), max_size=3), TOKENS,
    ),
    st.builds(wire.AdminReply, INT64, st.integers(200, 599), bodies),
    st.builds(wire.Fatal, st.text(), st.integers(0, 3)),
)  # fmt: skip
quick = settings(max_examples=60, deadline=None)


@quick
@given(to_engine)
def test_what_the_api_process_says_is_what_the_engine_hears(message: wire.ToEngine) -> None:
    assert wire.decoder(wire.ToEngine).decode(wire.encoder().encode(message)) == message


@quick
@given(from_engine)
def test_what_the_engine_says_is_what_the_api_process_hears(message: wire.FromEngine) -> None:
    assert wire.decoder(wire.FromEngine).decode(wire.encoder().encode(message)) == message


@quick
@given(to_engine, from_engine)
def test_neither_side_takes_its_own_words_for_the_others(up: wire.ToEngine, down: wire.FromEngine) -> None:
    for message, other in ((up, wire.FromEngine), (down, wire.ToEngine)):
        with pytest.raises(msgspec.ValidationError):
            wire.decoder(other).decode(wire.encoder().encode(message))


def test_a_greedy_token_costs_few_bytes_on_the_way_out() -> None:
    named = wire.SequenceDelta("r" * 36, 0, [123_456])
    assert len(msgspec.msgpack.encode(named)) < 36 + 40


def test_fields_a_newer_process_adds_are_passed_over() -> None:
    raw: dict[str, Any] = {"type": "abort", "request_id": "r", "reason": "new"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=wire.ToEngine) == wire.AbortRequest("r")


def test_requests_without_a_bias_do_not_share_one_that_is_added_later() -> None:
    first, second = wire.SamplingParams(1), wire.SamplingParams(1)
    first.logit_bias[3] = 1.0
    assert second.logit_bias == {}


@pytest.mark.parametrize("token_ids", [[1, 2, 3], b"12345", "abcd", None])
def test_token_ids_that_are_not_the_bytes_of_int32_numbers_are_refused(token_ids: object) -> None:
    raw = {"type": "add", "request_id": "r", "token_ids": token_ids, "params": {"max_tokens": 1}}
    with pytest.raises(msgspec.ValidationError, match="token_ids"):
        wire.decoder(wire.ToEngine).decode(msgspec.msgpack.encode(raw))


def test_a_prompt_costs_four_bytes_a_token_and_is_an_array_without_a_copy() -> None:
    sent = wire.AddRequest("r", wire.TokenIds(range(150_000, 151_000)), wire.SamplingParams(1))
    frame = wire.encoder().encode(sent)
    assert len(frame) < 4000 + 100
    heard = wire.decoder(wire.ToEngine).decode(frame)
    assert isinstance(heard, wire.AddRequest)
    token_ids = np.asarray(heard.token_ids, np.int32)
    assert np.shares_memory(token_ids, np.frombuffer(heard.token_ids, np.int32))
    assert token_ids.tolist() == list(range(150_000, 151_000))


def test_an_id_beyond_32_bits_never_gets_onto_the_wire() -> None:
    with pytest.raises(OverflowError):
        wire.TokenIds([2**31])
