"""Prompts of requests: what is refused before it is tokenized, what reaches the template, what is cut off."""

import threading
from typing import Any

import pytest

from asgi import Asked, ask
from eventually import turns, until
from mamba_text.encoder_pool import LONG_FROM_CHARS
from scripted_engine import TOKENIZER, Api, ids_of

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = [("Content-Type", "application/json")]
HELLO = [{"role": "user", "content": "hello"}]


def post(api: Api, path: str, **fields: Any) -> Asked:
    return ask(api.app, "POST", path, fields, headers=JSON)


def messages_of(path: str, text: str) -> dict[str, Any]:
    return {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}


async def told_ids(api: Api, asked: Asked) -> list[int]:
    """Return the prompt that reached the engine; the client leaves."""
    await until(lambda: api.engine.requests or asked.messages)
    assert asked.messages == [], asked.body
    ids = list(api.engine.requests[0].token_ids)
    await asked.leave().done()
    return ids


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_a_prompt_that_cannot_fit_is_refused_without_being_tokenized(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOKENIZER, "encode", None)
    monkeypatch.setattr(TOKENIZER, "encoding", None)
    asked = await post(Api(), path, **messages_of(path, "word " * 100_000)).done()
    assert (asked.status, asked.error["code"]) == (400, "context_length_exceeded")
    assert asked.error["param"] == ("prompt" if path == TEXT else "messages")


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_nothing_is_tokenized_for_whom_there_is_no_room(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(waiting=1)
    first = post(api, TEXT, prompt="x")
    await until(lambda: api.engine.requests)
    monkeypatch.setattr(TOKENIZER, "encode", None)
    monkeypatch.setattr(TOKENIZER, "encoding", None)
    assert (await post(api, path, **messages_of(path, "x")).done()).status == 429
    await first.leave().done()


async def test_long_prompts_of_clients_that_left_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(waiting=64)
    monkeypatch.setattr(TOKENIZER, "most_chars_per_token", None)
    free, begun, encode = threading.Event(), [], TOKENIZER.encode

    def slow(text: str, *, special: bool) -> list[int]:
        if len(text) >= LONG_FROM_CHARS:
            begun.append(text)
            free.wait(60)
        return encode(text, special=special)

    monkeypatch.setattr(TOKENIZER, "encode", slow)
    abandoned = [post(api, TEXT, prompt="x" * LONG_FROM_CHARS) for _ in range(8)]
    await until(lambda: begun and api.serving.preparing == 8)
    for asked in abandoned:
        asked.leave()
    for asked in abandoned:
        await asked.done()
    assert api.serving.preparing == 0
    try:
        assert len(await told_ids(api, post(api, CHAT, messages=HELLO))) > 5
    finally:
        free.set()
    await turns()
    assert len(begun) == 1


async def test_arguments_of_earlier_calls_reach_the_template_as_objects() -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    api = Api(template=template)
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}]
    history = [*HELLO, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "3"}]
    ids = await told_ids(api, post(api, CHAT, messages=history))
    assert TOKENIZER.decode(ids) == 'a=1;b=[2];{"a": 1, "b": [2]}'


@pytest.mark.parametrize("arguments", ["no json", "[1]", "[" * 5000, '"text"'], ids=lambda one: one[:8])
async def test_arguments_that_are_no_object_reach_the_template_as_they_came(arguments: str) -> None:
    api = Api(template="{{ messages[0].tool_calls[0].function.arguments[:20] }}")
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}]
    ids = await told_ids(api, post(api, CHAT, messages=[{"role": "assistant", "tool_calls": calls}]))
    assert TOKENIZER.decode(ids) == arguments[:20]


async def test_a_message_can_be_continued() -> None:
    history = [*HELLO, {"role": "assistant", "content": "The answer"}]
    asked_for = {"messages": history, "continue_final_message": True}
    ids = await told_ids(api := Api(), post(api, CHAT, **asked_for))
    assert TOKENIZER.decode(ids).endswith("assistant\nThe answer")
    refused = await post(api, CHAT, **asked_for, add_generation_prompt=True).done()
    assert (refused.status, refused.error["param"]) == (400, "add_generation_prompt")


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_the_end_of_a_prompt_is_kept_when_it_is_to_be_cut(path: str) -> None:
    long = messages_of(path, "one two three four five six seven eight nine ten " * 40)
    api = Api()
    assert (await post(api, path, **long).done()).status == 400
    ids = await told_ids(api, post(api, path, **long, truncate_prompt_tokens=20))
    assert len(ids) == 20
    if path == TEXT:
        assert ids == ids_of(long["prompt"])[-20:]
    else:
        assert api.engine.requests[0].turn_boundary == 20 - len(ids_of("<|im_start|>assistant\n"))


async def test_an_echo_shows_what_was_kept_of_the_prompt() -> None:
    api = Api()
    asked = post(api, TEXT, prompt="one two three", truncate_prompt_tokens=2, echo=True, max_tokens=1)
    await until(lambda: api.engine.requests)
    api.engine.delta("!", finish_reason="length")
    await asked.done()
    assert asked.json["choices"][0]["text"] == TOKENIZER.decode(ids_of("one two three")[-2:]) + "!"
    assert asked.json["usage"]["prompt_tokens"] == 2


async def test_no_tokens_are_counted_for_an_echo_alone() -> None:
    api = Api()
    asked = post(api, TEXT, prompt="one", echo=True, max_tokens=0)
    await until(lambda: api.engine.requests)
    assert api.engine.requests[0].params.max_tokens == 0
    api.engine.delta([], finish_reason="length")
    await asked.done()
    assert asked.json["choices"][0]["text"] == "one"
    usage = asked.json["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (0, usage["prompt_tokens"])


async def test_what_ended_a_choice_and_special_tokens_are_shown_on_demand() -> None:
    for fields, text in (
        ({}, "one "),
        ({"include_stop_str_in_output": True}, "one END"),
        ({"skip_special_tokens": False}, "<|im_end|>one "),
    ):
        api = Api()
        asked = post(api, TEXT, prompt="x", stop="END", max_tokens=9, **fields)
        await until(lambda api=api: api.engine.requests)
        api.engine.delta("<|im_end|>one END two")
        await asked.done()
        assert asked.json["choices"][0]["text"] == text


EFFORT = "{% if reasoning_effort %}{{ reasoning_effort }} {% endif %}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "hello"),
        ({"reasoning_effort": "low"}, "low hello"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "high hello"),
    ],
)
async def test_how_much_shall_be_reasoned_reaches_the_template(fields: dict[str, Any], prompt: str) -> None:
    api = Api(template=EFFORT)
    assert await told_ids(api, post(api, CHAT, messages=HELLO, **fields)) == ids_of(prompt)


async def test_a_template_that_knows_no_effort_makes_the_same_prompt() -> None:
    api, plain = Api(), Api()
    asked = await told_ids(api, post(api, CHAT, messages=HELLO, reasoning_effort="high"))
    assert asked == await told_ids(plain, post(plain, CHAT, messages=HELLO))


async def test_an_effort_that_is_none_is_refused_in_words() -> None:
    asked = await post(Api(), CHAT, messages=HELLO, reasoning_effort="much").done()
    assert (asked.status, asked.error["param"]) == (400, "reasoning_effort")
