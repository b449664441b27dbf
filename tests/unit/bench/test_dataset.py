"""Datasets of conversations: which requests they become, in which order and when, and what is refused."""

import json
from typing import Any

import pytest

from mamba_cli.bench.dataset import AnswerLength, DatasetError, cached_before, parse, requests

SHARE_GPT = json.dumps(
    [
        {"id": "a", "conversations": [
            {"from": "gpt", "value": "Go on."}, {"from": "human", "value": "What?"},
            {"from": "gpt", "value": "This is it."}, {"from": "human", "value": "And then?"},
            {"from": "gpt", "value": "Nothing."}]},
        {"id": "b", "conversations": [{"from": "human", "value": "Why?"}]},
        {"id": "c", "conversations": [{"from": "gpt", "value": "A monologue."}]},
    ]
)  # fmt: skip


def line(text: str, **fields: Any) -> str:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text},
                {"role": "assistant", "content": "Yes, as long as it takes."}]  # fmt: skip
    return json.dumps({"messages": messages, **fields})


def test_each_recorded_answer_of_sharegpt_is_asked_for_with_its_length_and_what_preceded_it() -> None:
    first, other, second = requests(parse(SHARE_GPT), AnswerLength(unanswered=7))
    assert [message["content"] for message in first.messages or ()] == ["What?"]
    assert first.output_tokens == 3  # "This is it.", 11 bytes at 4 a token
    assert (other.messages or ())[0] == {"role": "user", "content": "Why?"}
    assert other.output_tokens == 7
    # A later turn repeats the earlier one, with the answer as recorded.
    roles = [message["role"] for message in second.messages or ()]
    assert roles == ["user", "assistant", "user"]
    assert second.output_tokens == 2


def test_json_lines_with_times_arrive_as_they_did_and_recorded_lengths_win() -> None:
    text = "\n".join([line("late", timestamp="2026-11-29T07:00:06Z"), "",
                      line("early", timestamp="2026-11-29T07:00:00Z", output_tokens=90)])  # fmt: skip
    early, late = requests(parse(text), AnswerLength(longest=50), speed=2)
    assert (early.at, late.at) == (0.0, 3.0)
    assert [prompt.output_tokens for prompt in (early, late)] == [50, 7]
    assert [message["role"] for message in late.messages or ()] == ["system", "user"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no record has a message of a user"),
        ("[{]", "not JSON"),
        (f"{line('one')}\nno", "line 2: not JSON"),
        ('{"prompt": "x"}', 'line 1: expected an object with "messages"'),
        ("[3]", 'record 1: expected an object with "messages"'),
        ('{"messages": ["hello"]}', "line 1: a message must be an object, not str"),
        ('{"messages": [{"role": "pirate", "content": "ahoy"}]}', "line 1: unknown role 'pirate'; known are"),
        ('{"conversations": [{"from": "human", "text": "x"}]}', "needs the text in `value`"),
        (line("x", output_tokens=0), "output_tokens must be a positive whole number"),
        (line("x", timestamp="noon"), "timestamp must be seconds or a time such as"),
        (f"{line('x', timestamp=1)}\n{line('y')}", "1 of 2 records have a timestamp: give one to"),
    ],
)  # fmt: skip
def test_a_record_of_another_form_is_refused_by_its_place(text: str, message: str) -> None:
    with pytest.raises(DatasetError) as refusal:
        parse(text)
    assert message in str(refusal.value)


def test_a_second_run_is_told_from_turns_that_repeat_each_other() -> None:
    prompts = requests(parse(SHARE_GPT), AnswerLength())
    # About a quarter of the characters are the first turn within the second.
    assert cached_before(25, 100, prompts) == 0
    assert cached_before(96, 100, prompts) > 50
