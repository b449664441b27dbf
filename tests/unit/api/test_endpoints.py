"""The generating endpoints over ASGI: clients that leave, dawdle or come too early; errors at any time."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asgi import Asked, ask
from eventually import turns, until
from mamba_api.bounded_text import LONGEST_WORD
from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import MOST_MESSAGE
from mamba_server import wire
from mamba_server.api.forms.grammar_checker import GrammarChecker
from scripted_engine import READY, TOKENIZER, Api, ids_of

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = [("Content-Type", "application/json")]
TAGGED = "{{ tools }}<tool_call>\n<function=f>"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def post(api: Api, path: str = TEXT, **fields: Any) -> Asked:
    body = {"prompt": "one two", **fields} if path == TEXT else {**HELLO, **fields}
    return ask(api.app, "POST", path, body, headers=JSON)


async def told(api: Api, count: int = 1) -> None:
    """Return when the engine got so many requests."""
    await until(lambda: len(api.engine.requests) >= count)


def assert_left_nothing(api: Api) -> None:
    assert (api.engine.client.open, api.engine.client.waiting) == (0, 0)
    assert api.serving.drain.under_way == 0


async def test_a_client_that_leaves_in_its_body_costs_nothing() -> None:
    api = Api()
    asked = Asked(api.app, "POST", TEXT, headers=JSON).part(b'{"prompt": "on').leave()
    await asked.done()
    assert asked.messages == []
    assert api.engine.process.sent == []
    assert api.answered() == {(TEXT, "499"): 1}
    assert_left_nothing(api)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_is_aborted(stream: bool) -> None:
    api = Api()
    asked = post(api, prompt=["a", "b"], stream=stream)
    await told(api, 2)
    await asked.leave().done()
    assert asked.messages == []
    assert api.engine.aborted == [request.request_id for request in api.engine.requests]
    assert api.finished() == {"abort": 2}
    assert api.answered() == {(TEXT, "499"): 1}
    assert_left_nothing(api)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_is_aborted() -> None:
    api = Api()
    asked = post(api, CHAT, stream=True)
    await told(api)
    api.engine.delta("hi")
    await until(lambda: len(asked.messages) >= 2)
    await asked.leave().done()
    assert not asked.complete
    assert len(api.engine.aborted) == 1
    assert api.answered() == {(CHAT, "499"): 1}
    assert_left_nothing(api)


async def test_a_client_that_stops_reading_and_leaves_is_aborted() -> None:
    api = Api()
    asked = Asked(api.app, "POST", TEXT, headers=JSON, blocked=True).whole({"prompt": "x", "stream": True})
    await told(api)
    for _ in range(20):
        api.engine.delta("word ")
        await asyncio.sleep(0)
    await asked.leave().done()
    assert asked.messages == []
    assert len(api.engine.aborted) == 1
    assert_left_nothing(api)


async def test_tokens_pile_up_behind_a_slow_reader_as_one_event_and_none_is_lost() -> None:
    api = Api()
    asked = Asked(api.app, "POST", TEXT, headers=JSON, blocked=True)
    asked.whole({"prompt": "x", "stream": True, "max_tokens": 100})
    await told(api)
    words = [f"w{number} " for number in range(30)]
    for word in words:
        api.engine.delta(word)
        await asyncio.sleep(0)
    api.engine.delta([], finish_reason="length")
    asked.reading.set()
    await asked.done()
    chunks = [json.loads(event) for event in asked.events[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(words)
    assert len(chunks) < 5
    assert asked.events[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "retry_after", "header"),
    [(429, 7.2, "8"), (429, None, "1"), (503, 0.1, "1"), (400, None, None)],
)
async def test_a_refusal_before_the_first_token_has_its_own_status_and_retry_after(
    stream: bool, status: int, retry_after: float | None, header: str | None
) -> None:
    api = Api()
    asked = post(api, stream=stream)
    await told(api)
    api.engine.rejects(status, "full", retry_after=retry_after)
    await asked.done()
    assert (asked.status, asked.error["code"], asked.error["message"]) == (
        status,
        "full",
        "the engine's words",
    )
    assert asked.headers.get("retry-after") == header
    assert asked.headers["content-type"] == "application/json"
    assert api.answered() == {(TEXT, str(status)): 1}
    assert_left_nothing(api)


async def test_the_loss_of_the_engine_before_a_whole_answer_is_503_though_tokens_had_come() -> None:
    api = Api()
    asked = post(api)
    await told(api)
    api.engine.delta("some")
    await turns()
    api.engine.dies()
    await asked.done()
    assert (asked.status, asked.error["code"]) == (503, "engine_lost")
    assert asked.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_the_loss_of_the_engine_in_a_stream_is_an_event_before_the_end(path: str) -> None:
    api = Api()
    asked = post(api, path, stream=True)
    await told(api)
    api.engine.delta("some")
    await until(lambda: len(asked.messages) >= 2)
    api.engine.dies()
    await asked.done()
    *_, error, done = asked.events
    assert json.loads(error)["error"]["code"] == "engine_lost"
    assert done == "[DONE]"
    assert (asked.status, asked.complete) == (200, True)
    assert api.finished() == {"error": 1}
    assert api.engine.aborted == []


async def test_no_usage_follows_an_error_in_a_stream() -> None:
    api = Api()
    asked = post(api, stream=True, stream_options={"include_usage": True})
    await told(api)
    api.engine.delta("some")
    await until(lambda: len(asked.messages) >= 2)
    api.engine.delta([], finish_reason="error")
    await asked.done()
    assert [set(json.loads(event)) >= {"error"} for event in asked.events[:-1]] == [False, True]
    assert api.finished() == {"error": 1}


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_gateway_that_counts_gets_the_usage_in_a_comment_and_nobody_else(wanted: bool) -> None:
    api = Api()
    headers = [*JSON, *([("x-mambaserve-usage", "1")] if wanted else [])]
    asked = ask(api.app, "POST", TEXT, {"prompt": "one two", "stream": True}, headers=headers)
    await told(api)
    api.engine.delta("some")
    await until(lambda: len(asked.messages) >= 2)
    api.engine.delta([], finish_reason="stop")
    await asked.done()
    *_, comment, done = asked.body.rstrip().split(b"\n\n")
    assert done == b"data: [DONE]"
    assert comment.startswith(b": ") == wanted
    if wanted:
        usage = json.loads(comment.removeprefix(b": "))["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


async def test_before_the_engine_is_ready_a_request_is_told_how_far_it_is() -> None:
    api = Api(ready=False)
    api.engine.send(wire.Progress("weights", 3, 10))
    asked = await post(api).done()
    assert (asked.status, asked.error["code"]) == (503, "not_ready")
    assert "weights" in asked.error["message"]
    assert asked.headers["retry-after"] == "2"
    api.engine.send(READY)
    api.serving.text = None
    asked = await post(api).done()
    assert (asked.status, asked.error["code"]) == (503, "not_ready")
    assert "tokenizer" in asked.error["message"]


async def test_a_wrong_request_is_told_so_even_before_the_engine_is_ready() -> None:
    api = Api(ready=False)
    assert (await post(api, temperature=9).done()).status == 400
    assert (await post(api, model="other").done()).error["code"] == "model_not_found"


async def test_an_engine_that_dies_between_admission_and_submission_is_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()
    encode = TOKENIZER.encode

    def dying_meanwhile(text: str, *, special: bool) -> list[int]:
        api.engine.dies()
        return encode(text, special=special)

    monkeypatch.setattr(TOKENIZER, "encode", dying_meanwhile)
    asked = await post(api).done()
    assert (asked.status, asked.error["code"]) == (503, "not_ready")
    assert "signal 9" in asked.error["message"]
    assert api.finished() == {}
    assert_left_nothing(api)


async def test_a_drain_refuses_before_the_body_is_read_and_lets_streams_finish() -> None:
    api = Api()
    running = post(api, stream=True)
    await told(api)
    api.serving.drain.draining = True
    refused = await Asked(api.app, "POST", TEXT, headers=JSON).done()
    assert (refused.status, refused.error["code"]) == (503, "not_ready")
    assert int(refused.headers["retry-after"]) >= 1
    assert not await api.serving.drain.wait_until_idle(0.01)
    api.engine.delta("done", finish_reason="length")
    await running.done()
    assert running.events[-1] == "[DONE]"
    assert await api.serving.drain.wait_until_idle(1)


async def test_a_request_whose_body_still_comes_is_under_way_for_a_drain() -> None:
    api = Api()
    asked = Asked(api.app, "POST", TEXT, headers=JSON).part(b'{"prompt": ')
    await turns()
    assert api.serving.drain.under_way == 1
    api.serving.drain.draining = True
    asked.part(b'"x"}', more=False)
    await told(api)
    api.engine.delta("x", finish_reason="length")
    assert (await asked.done()).status == 200


async def test_more_than_may_wait_is_429_until_the_first_token_makes_room() -> None:
    api = Api(waiting=2)
    first = post(api, prompt=["a", "b"])
    await told(api, 2)
    refused = await post(api).done()
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "1"
    assert "2 requests are waiting" in refused.error["message"]
    api.engine.delta("x", of=0)
    second = post(api)
    await told(api, 3)
    for asked in (first, second):
        await asked.leave().done()
    assert_left_nothing(api)


async def test_requests_whose_forms_wait_to_be_checked_take_no_places_of_others() -> None:
    api = Api(waiting=2)
    api.serving.text_files = Path("nowhere")
    api.serving.grammars = GrammarChecker(("sh", "-c", "exec sleep 600"))
    slow = [post(api, structured_outputs={"choice": [str(i)]}) for i in range(10)]
    await turns()
    first = post(api, prompt=["a", "b"])
    await told(api, 2)
    assert (await post(api).done()).status == 429
    for asked in (*slow, first):
        await asked.leave().done()
    await api.serving.grammars.close()
    assert api.serving.preparing == 0
    assert_left_nothing(api)


LONG = {
    "a number of a schema": {"structured_outputs": {"json": {"type": "integer", "minimum": 10**300}}},
    "a key": {"metadata": {"a" * 5000: 1}},
    "many words of a value": {"suffix": "x", "logit_bias": {"no token " * 5000: 1}},
    "a key of a tool's schema": {
        "messages": [{"role": "user", "content": "x"}], "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b" * 5000: 1}}}],
    },
}  # fmt: skip


@pytest.mark.parametrize("how", LONG)
async def test_what_a_client_wrote_is_told_again_in_a_few_words_at_most(how: str) -> None:
    api = Api(template=TAGGED)
    refused = await post(api, CHAT if "messages" in LONG[how] else TEXT, **LONG[how]).done()
    assert refused.status == 400
    assert len(refused.error["message"]) <= MOST_MESSAGE
    assert all(len(word) <= LONGEST_WORD for word in refused.body.decode().split())


async def test_large_requests_do_not_wait_for_each_other_s_answers() -> None:
    api = Api()
    both = [post(api, user="x" * 100_000) for _ in range(2)]
    await told(api, 2)
    for number, asked in enumerate(both):
        api.engine.delta("a", of=number, finish_reason="length")
        assert (await asked.done()).status == 200
    assert_left_nothing(api)


async def test_a_body_in_pieces_cut_inside_a_character_is_one_body() -> None:
    api = Api()
    raw = json.dumps({"prompt": "\u4e16\U0001f389", "max_tokens": 1}, ensure_ascii=False).encode()
    asked = Asked(api.app, "POST", TEXT, headers=JSON)
    for place in range(len(raw)):
        asked.part(raw[place : place + 1])
    asked.part(b"", more=False)
    await told(api)
    assert list(api.engine.requests[0].token_ids[1:]) == ids_of("\u4e16\U0001f389")
    api.engine.delta("x", finish_reason="length")
    assert (await asked.done()).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        ([("CONTENT-TYPE", "APPLICATION/JSON; Charset=UTF-8")], 200),
        ([("Content-Type", "application/ld+json")], 200),
        ([("Content-Type", "application/json"), ("Content-Length", "9" * 40)], 413),
        ([("Content-Type", "")], 415),
        ([("Content-Type", "json")], 415),
        ([("Content-Type", "application/jsonp")], 415),
        ([("Content-Type", "x" * 5000)], 415),
        ([("Content-Encoding", "identity")], 200),
        ([("Content-Encoding", "gzip")], 415),
        ([("Content-Encoding", "x" * 5000)], 415),
    ],
)
async def test_headers_decide_what_is_taken_for_a_body(headers: list[tuple[str, str]], status: int) -> None:
    api = Api()
    asked = ask(api.app, "POST", TEXT, {"prompt": "x"}, headers=headers)
    if status == 200:
        await told(api)
        api.engine.delta("x", finish_reason="length")
    await asked.done()
    assert asked.status == status
    assert len(asked.body) < 1000
    assert api.answered() == {(TEXT, str(status)): 1}


async def test_the_engine_hears_of_priority_and_salt_and_of_no_trace_that_nobody_records() -> None:
    api = Api(anonymous_priority=True)
    headers = [*JSON, ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    asked = ask(api.app, "POST", CHAT, {**HELLO, "priority": -5, "cache_salt": "s"}, headers=headers)
    await told(api)
    [request] = api.engine.requests
    assert (request.priority, request.cache_salt) == (-5, "s")
    assert request.traceparent == ""
    assert request.turn_boundary > 0
    await asked.leave().done()


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"echo": True, "logprobs": 20}, 400, "logprobs"),
        ({"prompt_logprobs": 20}, 400, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "echo": True, "logprobs": 20}, 400, "logprobs"),
        ({"echo": True, "logprobs": 0}, 0, None),
    ],
)
async def test_scores_of_prompts_that_would_take_more_than_bodies_may_are_refused_before_the_engine_hears(
    fields: dict[str, Any], status: int, param: str | None
) -> None:
    api = Api(max_held_body_bytes=64 * 1024, max_body_bytes=32 * 1024)
    asked = post(api, prompt=[[5] * 100] * 4, n=2, max_tokens=1, **fields)
    await until(lambda: asked.status or api.engine.requests)
    assert asked.status == status
    assert len(api.engine.requests) == (0 if status else 4)
    await asked.leave().done()
    if param is not None:
        assert json.loads(asked.body)["error"]["param"] == param


KEY = "k" * 20
NAMED = ("X-Mambaserve-Client", "one")


@pytest.mark.parametrize(
    ("key_name", "headers", "heard"),
    [
        (None, [], ("", 0)),
        (None, [NAMED], ("one", -5)),
        (None, [("X-Mambaserve-Client", "no name")], ("", 0)),
        ("two", [], ("two", -5)),
        ("two", [NAMED], ("two", -5)),
        ("gateway", [NAMED], ("one", -5)),
        ("gateway", [], ("gateway", -5)),
    ],
)
async def test_a_priority_acts_among_the_requests_of_one_client(
    key_name: str | None, headers: list[tuple[str, str]], heard: tuple[str, int], tmp_path: Path
) -> None:
    keys = None
    if key_name is not None:
        (tmp_path / "keys").write_text(f"{KEY} {key_name}\n")
        keys, headers = (
            KeyFile(tmp_path / "keys", "api_key_file"),
            [*headers, ("Authorization", f"Bearer {KEY}")],
        )
    api = Api(keys=keys)
    asked = ask(api.app, "POST", TEXT, {"prompt": "one", "priority": -5}, headers=[*JSON, *headers])
    await told(api)
    [request] = api.engine.requests
    assert (request.client, request.priority) == heard
    await asked.leave().done()


async def test_an_empty_prompt_is_the_beginning_of_a_text() -> None:
    api = Api()
    asked = post(api, prompt="")
    await told(api)
    assert list(api.engine.requests[0].token_ids) == [TOKENIZER.bos_id]
    await asked.leave().done()


async def test_a_model_without_a_template_says_what_to_call_instead() -> None:
    api = Api(template=None)
    asked = await post(api, CHAT).done()
    assert (asked.status, asked.error["code"], asked.error["param"]) == (400, "no_chat_template", "messages")
    assert "/v1/completions" in asked.error["message"]


@pytest.mark.parametrize("content", ["one", "word " * 3000], ids=["here", "in a thread"])
async def test_a_template_that_fails_is_the_request_s_error_wherever_it_ran(content: str) -> None:
    api = Api(template="{{ messages[0].content | dictsort }}")
    asked = await ask(
        api.app, "POST", CHAT, {"messages": [{"role": "user", "content": content}]}, headers=JSON
    ).done()
    assert (asked.status, asked.error["code"], asked.error["param"]) == (
        400, "chat_template_error", "messages",
    )  # fmt: skip


async def test_tools_are_refused_where_the_template_takes_none_unless_they_are_turned_off() -> None:
    api = Api()
    tools = [{"type": "function", "function": {"name": "add"}}]
    refused = await post(api, CHAT, tools=tools).done()
    assert (refused.status, refused.error["param"], refused.error["code"]) == (
        400,
        "tools",
        "tools_not_supported",
    )
    asked = post(api, CHAT, tools=tools, tool_choice="none")
    await told(api)
    await asked.leave().done()
