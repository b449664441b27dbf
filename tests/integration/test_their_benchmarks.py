"""The requests of other projects' load generators over real HTTP, and their way to read the answers."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine_api import serving
from servers import call
from tiny_model import write_model

TOKENS = 12
MODEL = "tiny"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
PARTS = [{"type": "text", "text": "one two three"}]
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm bench serve, openai": (
        "/v1/completions",
        {"prompt": "one two three", "repetition_penalty": 1.0, "max_tokens": TOKENS, "logprobs": None,
         "temperature": 0.0, "ignore_eos": True, **STREAM},
    ),
    "vllm bench serve, openai-chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": PARTS}], "max_completion_tokens": TOKENS,
         "temperature": 0.0, "ignore_eos": True, **STREAM},
    ),
    "genai-perf, chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": TOKENS,
         "min_tokens": TOKENS, "ignore_eos": True, **STREAM},
    ),
    "inference-perf, completion": (
        "/v1/completions", {"prompt": "one two three", "max_tokens": TOKENS, "ignore_eos": True, **STREAM},
    ),
    "inference-perf, chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": TOKENS, "ignore_eos": True,
         **STREAM},
    ),
    "GuideLLM, completions": (
        "/v1/completions",
        {"prompt": "one two three", "max_tokens": TOKENS, "stop": None, "ignore_eos": True, "stream": True,
         "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "GuideLLM, chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": PARTS}], "max_completion_tokens": TOKENS, "stop": None,
         "ignore_eos": True, "stream": True,
         "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
}  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny")) as running:
        yield running.url


def events_of(url: str, path: str, body: dict[str, Any]) -> list[str]:
    """Return the events of a stream, read line by line as the tools do."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/event-stream")
    lines = [line.decode().strip() for line in answer]
    connection.close()
    return [line.removeprefix("data: ") for line in lines if line and not line.startswith(":")]


@pytest.mark.parametrize("tool", SHAPES)
def test_a_tool_counts_every_token_and_reads_the_usage(url: str, tool: str) -> None:
    path, body = SHAPES[tool]
    *events, last = events_of(url, path, {"model": MODEL, **body})
    assert last == "[DONE]"
    chunks = [json.loads(event) for event in events]
    texts = [
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
    ]
    assert any(texts)
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert usages[-1]["completion_tokens"] == TOKENS
    assert usages[-1]["prompt_tokens"] > 0
    assert chunks[-1]["choices"] == []


def test_a_tool_finds_out_that_the_server_is_ready_and_what_it_serves(url: str) -> None:
    assert call(f"{url}/health")[0] == 200
    status, models = call(f"{url}/v1/models")
    assert (status, models["data"][0]["id"]) == (200, MODEL)
