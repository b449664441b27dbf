"""The paths of coding agents at the gateway: keys, errors in their form, tokens of answers, prompts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Send

from asgi import Asked, ask
from mamba_api.dialects.paths import COUNT_TOKENS, MESSAGES, RESPONSES
from mamba_edge.error_forms import form_of
from mamba_gateway.body_fields import UsageMeter, routing_fields
from mamba_gateway.errors import UpstreamLost
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.prompts.prompt_reader import text_of
from mamba_gateway.relay.answer import EventAligner
from mamba_gateway.upstream.connector import UpstreamRequest
from proxy_harness import ProxyHarness, samples

BODY = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("sk-a team-a\n")
    return file


def sent(harness: ProxyHarness, path: str = MESSAGES, body: Any = BODY, **headers: str) -> Asked:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return ask(harness.app, "POST", path, body, headers=pairs)


async def test_a_key_passes_in_either_header_and_never_reaches_an_engine(keys: Path) -> None:
    harness = ProxyHarness(keys=keys)
    assert (await sent(harness, x_api_key="sk-a").done()).status == 200
    assert (await sent(harness, authorization="Bearer sk-a").done()).status == 200
    passed = [value for call in harness.relay.calls for _, value in call.headers]
    assert not any(b"sk-a" in value for value in passed)
    assert passed.count(b"team-a") == 2


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
async def test_a_refusal_of_the_gateway_has_the_form_of_the_path(keys: Path, path: str) -> None:
    harness = ProxyHarness(keys=keys)
    refused = await sent(harness, path, x_api_key="sk-b", x_request_id="r1").done()
    assert refused.status == 401
    assert refused.json == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "the API key is not accepted"},
        "request_id": "r1",
    }
    assert refused.headers["request-id"] == "r1"


@pytest.mark.parametrize(
    ("path", "begin"),
    [
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        (RESPONSES, b'event: error\ndata: {"type":"error","code":"upstream_died"'),
    ],
)
def test_a_stream_that_breaks_off_ends_with_the_error_event_of_its_dialect(path: str, begin: bytes) -> None:
    aligner = EventAligner()
    assert aligner.feed(b"event: a\ndata: {}\n\nevent: b") == b"event: a\ndata: {}\n\n"
    end = aligner.terminate(UpstreamLost("gone"), form_of(path), "r1")
    assert end.startswith(begin)
    assert end.endswith(b"}\n\n")
    assert b"[DONE]" not in end


async def test_an_engine_s_refusal_of_a_stream_that_waited_keeps_its_form() -> None:
    refusal = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "no"},
        "request_id": "r",
    }

    async def refuses(_: UpstreamRequest, send: Send) -> None:
        await asyncio.sleep(0.05)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(refusal).encode()})

    harness = ProxyHarness(refuses, comment_interval=0.01)
    asked = await sent(harness, body={**BODY, "stream": True}).done()
    assert asked.status == 200
    last = asked.body.split(b"\n\n")[-2].decode()
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.partition("data: ")[2]) == refusal


USAGES = {
    "a message": {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
                  "output_tokens": 5},
    "a response": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 5,
                   "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12},
}  # fmt: skip


@pytest.mark.parametrize("dialect", USAGES)
def test_the_tokens_of_an_answer_are_read_in_each_dialect(dialect: str) -> None:
    first = {**USAGES[dialect], "output_tokens": 0, "total_tokens": 0}
    data = b"".join(
        b"event: x\ndata: " + json.dumps({"usage": u}).encode() + b"\n\n" for u in (first, USAGES[dialect])
    )
    for size in (1, 7, 4096):
        meter = UsageMeter()
        for start in range(0, len(data), size):
            meter.feed(data[start : start + size])
        assert meter.used(1000) == 12
        assert meter.usage is not None
        assert meter.usage.cached_tokens == 3


async def test_counting_tokens_is_not_charged_to_a_limit_of_tokens(keys: Path) -> None:
    table = KeyLimitTable(KeyLimits(tokens_per_minute=50), {})
    harness = ProxyHarness(keys=keys, limits=table)
    long = {"messages": [{"role": "user", "content": "word " * 100}]}
    for _ in range(3):
        assert (await sent(harness, COUNT_TOKENS, long, x_api_key="sk-a").done()).status == 200


async def test_requests_are_counted_by_their_path() -> None:
    harness = ProxyHarness()
    await sent(harness, RESPONSES, {"input": "x"}).done()
    paths = {
        labels.get("route", labels.get("path"))
        for name, labels, value in samples(harness.metrics.registry)
        if name == "mambaserve_gateway_requests_total" and value
    }
    assert paths == {RESPONSES}


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"tool_choice": {"type": "auto"}}', False),
        (b'{"tool_choice": {"type": "any"}}', True),
        (b'{"text": {"format": {"type": "text"}}}', False),
        (b'{"text": {"format": {"type": "json_object"}}}', True),
    ],
)
def test_forms_of_dialects_are_known(body: bytes, form: bool) -> None:
    assert routing_fields(body).has_form == form


def test_the_limit_of_a_response_s_answer_is_known() -> None:
    assert routing_fields(b'{"max_output_tokens": 7}').answer_tokens == 7


def test_without_a_tokenizer_a_further_turn_shares_the_beginning_of_the_one_before() -> None:
    long = {"role": "user", "content": "word " * 2000}
    for path, first, second in (
        (MESSAGES, {"messages": [long]}, {"messages": [long, {**long, "role": "assistant"}]}),
        (RESPONSES, {"input": [long]}, {"input": [long, long]}),
        (RESPONSES, {"instructions": "i" * 9000, "input": "x"}, {"instructions": "i" * 9000, "input": "y"}),
    ):
        before, after = (text_of(path, json.dumps(body).encode()) for body in (first, second))
        assert before is not None
        assert after is not None
        assert before.digests
        assert after.digests[: len(before.digests)] == before.digests
