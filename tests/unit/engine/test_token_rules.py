"""Rules for the next token: budgets of thoughts, allowed tokens and bad words, with and without a grammar."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.engine.sequences.token_rules import NOTHING_LEFT, TokenRules, rules_for
from mamba_server.grammar_matcher import mask_words
from mamba_server.wire import SamplingParams, ThoughtBudget

VOCABULARY = 300
END, CALL = 256, 257
"""Tokens with the texts of markers; each other one below 256 is a byte."""
TEXTS = {END: b"</think>", CALL: b"<tool_call>"}


def decode(tokens: list[int]) -> bytes:
    return b"".join(TEXTS.get(token, bytes([token % 256])) for token in tokens)


def rules(**fields: Any) -> TokenRules:
    made = rules_for(SamplingParams(max_tokens=50, **fields), VOCABULARY, None, decode)
    assert isinstance(made, TokenRules)
    return made


def budget(tokens: int, begin: str = "", closing: tuple[int, ...] = (10, END, 10)) -> dict[str, Any]:
    return {"thought_budget": ThoughtBudget(tokens, begin, ("</think>", "<tool_call>"), closing)}


def allowed(rule: TokenRules) -> set[int]:
    out = np.zeros(mask_words(VOCABULARY), np.int32)
    rule.allowed(out)
    bits = np.unpackbits(out.view(np.uint8), bitorder="little")[:VOCABULARY]
    return set(np.flatnonzero(bits).tolist())


def written(rule: TokenRules, text: list[int]) -> list[int]:
    """Return what a model writes that wants to write `text`: a forced token comes first."""
    out: list[int] = []
    wanted = iter(text)
    while True:
        may = allowed(rule)
        token = next(wanted, None) if len(may) > 1 else may.pop()
        if token is None:
            return out
        out.append(token)
        rule.consume(token)


THOUGHT, ANSWER = list(b"hmm hmm"), list(b"answer")


@pytest.mark.parametrize("tokens", [0, 1, 3, 7])
def test_thoughts_end_behind_the_budget_and_the_answer_goes_on(tokens: int) -> None:
    out = written(rules(**budget(tokens)), THOUGHT[:tokens] + ANSWER)
    assert out == [*THOUGHT[:tokens], 10, END, 10, *ANSWER]


def test_thoughts_that_end_in_time_are_left_alone() -> None:
    assert written(rules(**budget(8)), [*THOUGHT, END, *ANSWER * 3]) == [*THOUGHT, END, *ANSWER * 3]


def test_a_marker_that_is_spelled_ends_thoughts_too() -> None:
    text = [*THOUGHT, *b"</think>", *ANSWER * 3]
    assert written(rules(**budget(15)), text) == text


def test_a_call_ends_thoughts_without_a_marker() -> None:
    text = [*THOUGHT, CALL, *ANSWER * 3]
    assert written(rules(**budget(8)), text) == text


def test_a_model_that_does_not_begin_to_think_has_no_budget() -> None:
    assert written(rules(**budget(2, "<think>")), ANSWER * 3) == ANSWER * 3
    out = written(rules(**budget(2, "<think>")), [*b"\n<think>", *ANSWER])
    assert out == [*b"\n<think>", *ANSWER[:1], 10, END, 10, *ANSWER[1:]]


def test_a_character_is_not_cut() -> None:
    text = [*"aé世🎉".encode()]
    for tokens, end in ((1, 1), (2, 3), (3, 3), (4, 6), (5, 6), (7, 10), (8, 10)):
        out = written(rules(**budget(tokens)), text)
        assert out[:end] == text[:end]
        assert out[end : end + 3] == [10, END, 10]
    # A model that writes no characters does not get more than the longest character has.
    assert written(rules(**budget(2)), [0xF0] * 9)[:6].count(0xF0) <= 5


@given(st.integers(0, 20), st.lists(st.integers(0, 127), max_size=40))
def test_no_thought_is_longer_than_its_budget(tokens: int, text: list[int]) -> None:
    out = written(rules(**budget(tokens)), text)
    assert END in out or len(out) < max(1, tokens)
    if END in out:
        assert out.index(END) <= tokens + 1


def test_only_allowed_tokens_come_even_if_a_bad_word_is_among_them() -> None:
    rule = rules(allowed_token_ids=(1, 40, 299), bad_words=((40,),))
    assert allowed(rule) == {1, 299}


def test_a_bad_word_is_not_completed() -> None:
    rule = rules(bad_words=((1, 2, 3), (2, 9), (7,)))
    everything = set(range(VOCABULARY))
    assert allowed(rule) == everything - {7}
    for token in (1, 2):
        rule.consume(token)
    assert allowed(rule) == everything - {7, 3, 9}
    rule.consume(4)
    assert allowed(rule) == everything - {7}


def test_where_no_token_is_left_the_answer_fails() -> None:
    rule = rules(allowed_token_ids=(1, 2), bad_words=((1,), (2,)))
    assert allowed(rule)
    rule.consume(1)
    assert rule.error == NOTHING_LEFT


def test_each_sequence_of_a_request_has_its_own_state() -> None:
    rule = rules(**budget(1), bad_words=((1, 2),))
    rule.consume(1)
    fork = rule.fork(frozenset())
    assert len(allowed(rule)) == 1
    assert len(allowed(fork)) == VOCABULARY


def test_a_request_without_rules_has_none() -> None:
    assert rules_for(SamplingParams(max_tokens=1), VOCABULARY) is None
