"""Prompts that wait to be routed: the very ids that an engine makes of them, or none in time."""

import asyncio
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest

from asgi import ask
from eventually import until
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.prompts import prompt_reader
from mamba_gateway.prompts.prompt_reader import (
    MAX_BODY_BYTES,
    MAX_PENDING,
    NEW_TEXT_SECONDS,
    READ_SECONDS,
    PromptReader,
    prompt_of,
    text_of,
)
from mamba_gateway.prompts.text_processors import ModelText
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_prefix.adapter_salt import adapted_salt
from mamba_text.segment_cache import SegmentCache
from scripted_engine import READY, Api

TEXT, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"
RESPONSES = "/v1/responses"
USER = {"role": "user", "content": "hello there"}
PART = {"type": "text", "text": "a"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "x"]}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, "x"]}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": "a plain text"}),
    (TEXT, {"prompt": ["first", "second"]}),
    (TEXT, {"prompt": [5, 6, 7]}),
    (TEXT, {"prompt": [[5, 6, 7], [8]]}),
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": "<s>with<|im_start|>special tokens", "cache_salt": "alice"}),
    (TEXT, {"prompt": "cut at its beginning", "truncate_prompt_tokens": 4}),
    (TEXT, {"prompt": "unïcode \u2603 \U0001f600", "echo": True, "max_tokens": 1}),
    (CHAT, {"messages": [USER]}),
    (CHAT, {"messages": [{"role": "system", "content": "be brief"}, USER], "cache_salt": "bob"}),
    (CHAT, {"messages": [{"role": "developer", "content": "be brief"}, USER]}),
    (CHAT, {"messages": [{"role": "user", "content": [PART, {**PART, "text": "b"}]}]}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                         {"role": "tool", "tool_call_id": "c1", "content": "42"}]}),
    (CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": "The ans"}],
            "continue_final_message": True, "add_generation_prompt": False}),
    (CHAT, {"messages": [USER], "add_generation_prompt": False}),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True, "x": [1]}}),
    (CHAT, {"messages": [USER], "reasoning_effort": "low"}),
    (CHAT, {"messages": [USER], "truncate_prompt_tokens": 3}),
    (CHAT, {"messages": [{"role": "user", "content": "<|im_end|> injected"}], "unknown_field": {"a": 1}}),
    (RESPONSES, {"input": "hello", "instructions": "be brief", "cache_salt": "dave"}),
    (RESPONSES, {"input": [{"role": "user", "content": "x"}, {"type": "reasoning", "summary": []},
                           {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                           {"type": "function_call_output", "call_id": "c", "output": "42"}]}),
    (MESSAGES, {"messages": [USER], "max_tokens": 4, "system": [PART, PART], "cache_salt": "carol"}),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": "The ans"}], "max_tokens": 4}),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [TOOL_USE]},
                             {"role": "user", "content": [TOOL_RESULT, PART]}], "max_tokens": 4}),
]  # fmt: skip


def model_text() -> ModelText:
    side = Api().serving.text
    return ModelText(side, SegmentCache(side.tokenizer))


@cache
def shared_text() -> ModelText:
    """Return one text for all tests. Its encoder starts a thread, which a fork has not."""
    return model_text()


async def the_same_ids(api: Api, path: str, body: dict[str, Any], text: ModelText) -> None:
    """Assert that the engine's API and the gateway read the same ids from `body`."""
    asked = ask(api.app, "POST", path, body, headers=[("Content-Type", "application/json")])
    await until(lambda: api.engine.requests or asked.messages)
    assert asked.messages == [], asked.body
    add = api.engine.requests[0]
    await asked.leave().done()

    prompt = prompt_of(path, json.dumps(body).encode(), text)

    assert prompt is not None
    assert prompt.token_ids.tolist() == list(add.token_ids)
    assert prompt.salt == add.cache_salt


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_the_gateway_makes_the_ids_that_the_engine_gets(path: str, body: dict[str, Any]) -> None:
    await the_same_ids(Api(), path, body, shared_text())


def test_each_turn_of_a_long_conversation_is_read_as_if_it_were_the_first() -> None:
    messages = [{"role": "user", "content": f"{number} " + "many words " * 40} for number in range(60)]
    for turn in range(3):
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {**USER, "content": f"turn {turn}"}]
        body = json.dumps({"messages": messages}).encode()
        warm, cold = prompt_of(CHAT, body, shared_text()), prompt_of(CHAT, body, model_text())
        assert warm is not None
        assert cold is not None
        assert warm.token_ids.tolist() == cold.token_ids.tolist()
        assert warm.digests == cold.digests


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_tools_that_are_offered_are_in_the_prompt_at_both_ends(choice: str) -> None:
    template = (
        "{% if tools %}{{ tools | tojson }} call <tool_call>{% endif %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    )
    api = Api(template=template)
    api.engine.send(msgspec.structs.replace(READY, max_model_len=2048))
    side = api.serving.text
    assert side is not None
    text = ModelText(side, SegmentCache(side.tokenizer))
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice}
    await the_same_ids(api, CHAT, body, text)
    shown = side.tokenizer.decode(prompt_of(CHAT, json.dumps(body).encode(), text).token_ids.tolist())
    assert ("parameters" in shown) is (choice == "auto")


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        (CHAT, b"{"), (CHAT, b"[]"), (CHAT, b"{}"), (CHAT, b'{"messages": []}'), (CHAT, b'{"messages": "x"}'),
        (TEXT, b'{"prompt": NaN}'), (TEXT, b'{"prompt": []}'), (TEXT, b'{"prompt": [-1, 2]}'),
        (TEXT, b'{"prompt": "\xff"}'), (TEXT, b'{"prompt":' + b"[" * 5000),
        (CHAT, b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'),
        (TEXT, b'{"prompt": [99999999999999999999]}'),
    ],
)  # fmt: skip
def test_what_an_engine_will_refuse_has_no_prompt_and_no_error(path: str, raw: bytes) -> None:
    assert prompt_of(path, raw, shared_text()) is None


class Texts:
    """In the place of the fetched tokenizers."""

    def __init__(self, text: ModelText | None) -> None:
        self.text = text

    def for_model(self, model: str | None) -> ModelText | None:
        return self.text if model == "m" else None


class Reading:
    def __init__(self, text: ModelText | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.metrics = GatewayMetrics(lambda: ())
        self.reader = PromptReader(Texts(text or shared_text()), self.metrics, clock=clock)  # type: ignore[arg-type]

    async def read(self, text: str = "x", model: str = "m") -> PromptPrefix | None:
        body = json.dumps({"prompt": text}).encode()
        return await self.reader.read(UpstreamRequest(TEXT, "", [], body, model))

    def outcomes(self) -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for sample in next(iter(self.metrics.prompts.collect())).samples
            if sample.name.endswith("_total")
        }


async def test_a_prompt_shares_prefixes_with_prompts_of_its_adapter_alone() -> None:
    texts, long = Texts(shared_text()), "a text of many words, " * 40
    for model in ("m", "without a tokenizer"):
        body = json.dumps({"prompt": long, "cache_salt": "own"}).encode()
        prompts = []
        for fingerprint in ("", "f" * 32, "e" * 32):
            reader = PromptReader(texts, GatewayMetrics(lambda: ()), lambda _, own=fingerprint: own)  # type: ignore[arg-type, misc]
            prompt = await reader.read(UpstreamRequest(TEXT, "", [], body, model))
            assert prompt is not None
            assert prompt.salt == adapted_salt(fingerprint, "own")
            prompts.append(prompt)
        assert len({prompt.digests for prompt in prompts}) == len(prompts)


async def test_each_outcome_is_counted() -> None:
    reading = Reading()
    assert await reading.read() is not None
    other = await reading.read(model="another")
    assert other is not None
    assert not other.exact
    assert await reading.read("x" * MAX_BODY_BYTES) is None
    assert await reading.reader.read(UpstreamRequest(CHAT, "", [], b"{}", "m")) is None
    assert reading.outcomes() == {"read": 1, "no_tokenizer": 1, "too_large": 1, "unusable": 1}


async def test_nobody_waits_for_a_prompt_longer_than_the_bound_and_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck:
        def __init__(self, _threads: int) -> None: ...

        async def run(self, _chars: int, _work: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(prompt_reader, "EncoderPool", Stuck)
    reading, loop = Reading(), asyncio.get_running_loop()
    begin = loop.time()
    waiting = [asyncio.create_task(reading.read()) for _ in range(MAX_PENDING)]
    await asyncio.sleep(0)
    assert await reading.read() is None
    assert loop.time() == begin
    assert await asyncio.gather(*waiting) == [None] * MAX_PENDING
    assert loop.time() - begin == pytest.approx(READ_SECONDS)
    assert reading.outcomes() == {"busy": 1, "late": MAX_PENDING}


async def test_a_prompt_that_was_read_is_relayed_before_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, events = Reading(), list[str]()
    first = prompt_reader.prompt_of

    def counted(*arguments: Any) -> PromptPrefix | None:
        events.append("read")
        return first(*arguments)

    async def relayed() -> None:
        await reading.read("text " * 2000)
        events.append("relayed")

    monkeypatch.setattr(prompt_reader, "prompt_of", counted)
    await asyncio.gather(*(relayed() for _ in range(20)))
    assert events == ["read", "relayed"] * 20


async def test_a_prompt_that_takes_too_long_is_routed_by_its_beginning_and_its_next_turn_by_all() -> None:
    now, step = 0.0, NEW_TEXT_SECONDS / 2

    def clock() -> float:
        nonlocal now
        now += step
        return now

    reading = Reading(model_text(), clock)
    contents = [f"message {number} " + "of some words " * 300 for number in range(20)]
    body = chat(*contents)
    beginning = await reading.reader.read(UpstreamRequest(CHAT, "", [], body, "m"))
    await until(lambda: reading.reader.rests == 0)
    step = 2 * NEW_TEXT_SECONDS  # no time for pieces that are not cached, but for a new turn
    body = chat(*contents, "one more question " * 300)
    whole = await reading.reader.read(UpstreamRequest(CHAT, "", [], body, "m"))
    true = prompt_of(CHAT, body, shared_text())
    assert beginning is not None
    assert whole is not None
    assert true is not None
    assert 0 < len(beginning.token_ids) < len(true.token_ids) / 5
    assert beginning.token_ids.tolist() == true.token_ids[: len(beginning.token_ids)].tolist()
    assert beginning.tokens == pytest.approx(true.tokens, rel=0.1)
    assert beginning.home == whole.home
    assert whole.token_ids.tolist() == true.token_ids.tolist()
    assert reading.outcomes() == {"part": 1, "read": 1}


def test_a_prompt_cut_at_its_beginning_is_not_routed_by_that_beginning() -> None:
    body = chat("some words " * 300, "more words " * 300, truncate_prompt_tokens=50)
    assert prompt_of(CHAT, body, model_text(), stop=lambda _: True) is None


def chat(*contents: str, **more: Any) -> bytes:
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": c} for n, c in enumerate(contents)]
    return json.dumps({"model": "m", **more, "messages": messages}).encode()


def test_without_a_tokenizer_a_further_turn_has_the_text_of_the_one_before_and_others_have_not() -> None:
    first = text_of(CHAT, chat("long question " * 200, temperature=0.1))
    second = text_of(CHAT, chat("long question " * 200, "an answer", "and now?"))
    other = text_of(CHAT, chat("another question " * 200))
    salted = text_of(CHAT, chat("long question " * 200, cache_salt="alice"))
    assert first is not None
    assert second is not None
    assert other is not None
    assert salted is not None
    assert first.digests == second.digests[: len(first.digests)]
    assert len(first.digests) > 5
    for stranger in (other, salted):
        assert not {d for _, d in first.digests} & {d for _, d in stranger.digests}
    assert text_of(TEXT, b'{"prompt": [1, 2, 3]}') is not None
    for nothing in (b"{", b"[]", b'{"messages": [', b"{}", b"\xff"):
        assert text_of(CHAT, nothing) is None


@pytest.mark.parametrize(
    ("path", "body", "whole"),
    [
        (TEXT, {"prompt": "a plain text"}, False),
        (TEXT, {"prompt": "a plain text", "logprobs": 1}, False),
        (TEXT, {"prompt": "a plain text", "echo": True}, False),
        (TEXT, {"prompt": "a plain text", "echo": True, "logprobs": 0}, True),
        (TEXT, {"prompt": "a plain text", "prompt_logprobs": 0}, True),
        (CHAT, {"messages": [USER], "logprobs": True}, False),
        (CHAT, {"messages": [USER], "prompt_logprobs": 0}, True),
    ],
)
async def test_the_prompts_that_an_engine_computes_whole_are_those_of_which_it_is_known(
    path: str, body: dict[str, Any], whole: bool
) -> None:
    api = Api()
    asked = ask(api.app, "POST", path, body, headers=[("Content-Type", "application/json")])
    await until(lambda: api.engine.requests or asked.messages)
    assert asked.messages == [], asked.body
    prompt = prompt_of(path, json.dumps(body).encode(), shared_text())
    assert prompt is not None
    assert prompt.computed_whole == (api.engine.requests[0].params.prompt_logprobs >= 0) == whole
    await asked.leave().done()
