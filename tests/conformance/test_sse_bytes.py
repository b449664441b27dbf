"""The bytes of a stream, exactly, and what every event must satisfy."""

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine_api import ApiProcess, serving
from mamba_api.openai_responses import ChatCompletionChunk, ChatCompletionResponse, CompletionResponse
from tiny_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        yield running


def normal(raw: bytes) -> bytes:
    """Return the bytes without parts that differ from run to run."""
    raw = re.sub(rb'"id":"(chatcmpl|cmpl)-[0-9a-f]{32}"', rb'"id":"\1-X"', raw)
    return re.sub(rb'"created":\d+', b'"created":0', raw)


def stream(api: ApiProcess, path: str, **fields: Any) -> tuple[dict[str, str], bytes]:
    parts = urlsplit(api.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    body = {"model": "tiny", "max_tokens": 3, "stream": True, "cache_salt": "slow", **fields}
    if path == CHAT:
        body.setdefault("messages", [{"role": "user", "content": "one two"}])
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


CHAT_GOLDEN = (
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant",'
    b'"content":""},"logprobs":null,"finish_reason":null}],"object":"chat.completion.chunk"}\n\n'
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[{"index":0,"delta":{"content":"user"},'
    b'"logprobs":null,"finish_reason":null}],"object":"chat.completion.chunk"}\n\n'
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[{"index":0,"delta":{"content":"\\n"},'
    b'"logprobs":null,"finish_reason":"length"}],"object":"chat.completion.chunk"}\n\n'
    b"data: [DONE]\n\n"
)
CHAT_USAGE_GOLDEN = (
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant",'
    b'"content":""},"logprobs":null,"finish_reason":null}],"object":"chat.completion.chunk","usage":null}\n\n'
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[{"index":0,"delta":{},'
    b'"logprobs":null,"finish_reason":"length"}],"object":"chat.completion.chunk","usage":null}\n\n'
    b'data: {"id":"chatcmpl-X","created":0,"model":"tiny","choices":[],"object":"chat.completion.chunk",'
    b'"usage":{"prompt_tokens":PP,"completion_tokens":1,"total_tokens":TT,'
    b'"prompt_tokens_details":{"cached_tokens":CC}}}\n\n'
    b"data: [DONE]\n\n"
)
TEXT_GOLDEN = (
    b'data: {"id":"cmpl-X","created":0,"model":"tiny","choices":[{"index":0,"text":"o","logprobs":null,'
    b'"finish_reason":null}],"object":"text_completion"}\n\n'
    b'data: {"id":"cmpl-X","created":0,"model":"tiny","choices":[{"index":0,"text":"ne","logprobs":null,'
    b'"finish_reason":null}],"object":"text_completion"}\n\n'
    b'data: {"id":"cmpl-X","created":0,"model":"tiny","choices":[{"index":0,"text":" two","logprobs":null,'
    b'"finish_reason":"length"}],"object":"text_completion"}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_chat_stream_is_exactly_this(api: ApiProcess) -> None:
    headers, raw = stream(api, CHAT)
    assert normal(raw) == CHAT_GOLDEN
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"]


def test_the_usage_chunk_is_exactly_this(api: ApiProcess) -> None:
    _, raw = stream(api, CHAT, max_tokens=1, stream_options={"include_usage": True})
    prompt = json.loads(raw.split(b"data: ")[3])["usage"]["prompt_tokens"]
    golden = CHAT_USAGE_GOLDEN.replace(b"PP", str(prompt).encode())
    golden = golden.replace(b"TT", str(prompt + 1).encode()).replace(b"CC", str(prompt - 5).encode())
    assert normal(raw) == golden


def test_a_completion_stream_is_exactly_this(api: ApiProcess) -> None:
    _, raw = stream(api, TEXT, prompt="one two")
    assert normal(raw) == TEXT_GOLDEN


def test_usage_in_every_chunk_counts_up(api: ApiProcess) -> None:
    _, raw = stream(
        api, TEXT, prompt="one two", stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    chunks = [json.loads(event) for event in events(raw)[:-1]]
    *counts, total = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    # On a busy machine, a chunk may have two tokens.
    assert counts == sorted({*counts}), "each chunk counts more than the one before"
    assert counts[0] > 0
    assert counts[-1] == total == 3


def events(raw: bytes) -> list[bytes]:
    """Return the data of each event; every event is one data line and an empty line."""
    assert raw.endswith(b"\n\n")
    blocks = raw[:-2].split(b"\n\n")
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [block.removeprefix(b"data: ") for block in blocks]


EVERYTHING: dict[str, Any] = {
    "n": 2, "max_tokens": 6, "return_token_ids": True, "prompt_logprobs": 1,
    "stream_options": {"include_usage": True}, "cache_salt": "",
}  # fmt: skip


def test_chunks_and_answers_of_chats_are_what_the_document_says(api: ApiProcess) -> None:
    _, raw = stream(api, CHAT, logprobs=True, top_logprobs=2, **EVERYTHING)
    for event in events(raw)[:-1]:
        ChatCompletionChunk.model_validate_json(event)
    body = {
        "messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2,
        **{key: value for key, value in EVERYTHING.items() if key != "stream_options"},
    }  # fmt: skip
    ChatCompletionResponse.model_validate_json(api.call("POST", CHAT, body).body)


def test_chunks_and_answers_of_completions_are_what_the_document_says(api: ApiProcess) -> None:
    _, raw = stream(api, TEXT, prompt=["one", "two"], logprobs=2, echo=True, **EVERYTHING)
    for event in events(raw)[:-1]:
        CompletionResponse.model_validate_json(event)
    body = {
        "prompt": ["one", "two"], "logprobs": 2, "echo": True,
        **{key: value for key, value in EVERYTHING.items() if key != "stream_options"},
    }  # fmt: skip
    CompletionResponse.model_validate_json(api.call("POST", TEXT, body).body)


@pytest.mark.parametrize(
    "content", ["line\nbreak \u2028 \u0085 end", "世界 🎉👩‍👩‍👧", 'quote " back \\ slash', "\x00\x1f"]
)
def test_no_content_can_break_the_framing(api: ApiProcess, content: str) -> None:
    messages = [{"role": "user", "content": content}]
    _, raw = stream(api, CHAT, messages=messages, max_tokens=60, cache_salt="")
    chunks = [json.loads(event) for event in events(raw)[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert content in text
    assert "\ufffd" not in text


def test_each_chunk_of_multi_byte_text_is_whole_characters(api: ApiProcess) -> None:
    messages = [{"role": "user", "content": "世界 🎉"}]
    _, raw = stream(api, CHAT, messages=messages, max_tokens=17)
    pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events(raw)[:-1]]
    assert "世" in pieces
    assert "🎉" in "".join(pieces)
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_error_inside_a_stream_is_an_event_and_the_stream_still_ends(api: ApiProcess) -> None:
    _, raw = stream(api, CHAT, max_tokens=9, cache_salt="slow+fail")
    *_, error, done = events(raw)
    assert done == b"[DONE]"
    assert set(json.loads(error)["error"]) == {"message", "type", "param", "code"}
