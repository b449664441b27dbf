"""Tokens of an answer, read from its bytes whatever pieces they come in."""

import json
from random import Random

import pytest

from mamba_gateway.body_fields import UsageMeter

USAGE = {
    "prompt_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens": 5,
    "total_tokens": 12,
}
TOLD = json.dumps({"usage": USAGE}).encode()
SAID = [{"text": 'x "usage": {"total_tokens": 999} '}]
EVENTS = b"".join(b'data: {"choices": [{"text": "t%d"}], "usage": null}\n\n' % n for n in range(4))
ANSWERS = {
    "a whole answer": json.dumps({"choices": SAID, "usage": USAGE}).encode(),
    "a whole answer with more behind it": json.dumps({"usage": USAGE, "rest": ["y" * 5000]}).encode(),
    "a stream that tells it": EVENTS + b"data: " + TOLD + b"\n\n",
    "a comment": EVENTS + b": " + TOLD.replace(b" ", b"") + b"\n\ndata: [DONE]\n\n",
    "more and more": b"".join(b'data: {"usage":{"total_tokens":%d}}\n\n' % n for n in range(13)),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_the_engine_s_own_count_is_found_in_any_pieces(what: str) -> None:
    for seed in range(20):
        rng, left, meter = Random(seed), ANSWERS[what], UsageMeter()
        while left:
            cut = rng.randint(1, 1 + len(left) // (seed + 1))
            meter.feed(left[:cut])
            left = left[cut:]
        assert meter.used(1000) == 12
        assert meter.size == len(ANSWERS[what])


def test_its_parts_are_told_and_an_engine_that_gives_no_sum_has_one() -> None:
    meter = UsageMeter()
    meter.feed(TOLD)
    assert meter.usage is not None
    assert (meter.usage.prompt_tokens, meter.usage.completion_tokens, meter.usage.cached_tokens) == (7, 5, 3)
    meter.feed(b'{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}')
    assert (meter.usage.cached_tokens, meter.used(1000)) == (None, 5)


@pytest.mark.parametrize(
    "said", ['{"total_tokens": "x"}', '{"total_tokens": -1}', '{"total_tokens": 1e400}', "{x}"]
)
def test_what_is_no_count_is_not_counted(said: str) -> None:
    meter = UsageMeter()
    meter.feed(b'data: {"usage": ' + said.encode() + b"}\n\n")
    assert (meter.usage, meter.used(10)) == (None, 11)


def test_without_it_each_event_is_a_token() -> None:
    meter = UsageMeter()
    for event in EVENTS.split(b"\n\n"):
        meter.feed(event + b"\n\n")
    assert meter.used(100) == 104


def test_what_was_not_answered_used_nothing() -> None:
    assert UsageMeter().used(100) == 0
