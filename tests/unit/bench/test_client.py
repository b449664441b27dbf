"""Parsing of a stream by the measuring client, however the stream is cut and whatever else it contains."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample

PROMPT = LoadPrompt((9, 10, 11), 3)


@dataclass
class Answer:
    """One HTTP answer, in the chunks the network happened to deliver."""

    chunks: list[bytes]
    status: int = 200
    broken: Exception | None = None
    forever: bool = False
    closed: bool = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True

    @property
    def content(self) -> "Answer":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk
        if self.broken is not None:
            raise self.broken
        if self.forever:
            await asyncio.Event().wait()

    async def read(self) -> bytes:
        return b"".join(self.chunks)


@dataclass
class Network:
    """Stands in for a session: gives one answer and remembers what was posted."""

    answer: Answer
    posted: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    def post(self, url: str, *, data: bytes, headers: dict[str, str], timeout: object) -> Answer:
        self.posted.append((url, json.loads(data), headers))
        return self.answer


def client(answer: Answer, url: str = "http://h:1", **more: Any) -> tuple[LoadClient, Network]:
    network = Network(answer)
    return LoadClient(cast("aiohttp.ClientSession", network), url, "m", **more), network


def sample(*chunks: bytes, **more: Any) -> Sample:
    return asyncio.run(client(Answer(list(chunks), **more))[0].send(PROMPT, 0.0))


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(text: str = "x", **fields: Any) -> bytes:
    return event(choices=[{"text": text, **fields}])


USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3})
END = b"data: [DONE]\n\n"
WHOLE = token() + token("", token_ids=[5]) + token("", finish_reason="length") + USAGE + END


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12))
def test_a_stream_is_read_the_same_wherever_the_network_cuts_it(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    found = sample(*(WHOLE[a:b] for a, b in pairwise(places)))
    assert found.error is None
    assert (found.prompt_tokens, found.output_tokens, len(found.itl)) == (7, 3, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"\n\n", b"\r\n\r\n"), (b"data: ", b"data:"), (b"\n\n", b"\n\n: keep-alive\n\n"),
     (b"data: ", b"event: message\nid: 3\ndata: ")],
    ids=["windows line ends", "no space", "comments", "other fields"],
)  # fmt: skip
def test_every_spelling_of_server_sent_events_is_understood(before: bytes, after: bytes) -> None:
    found = sample(WHOLE.replace(before, after))
    assert found.error is None
    assert (found.prompt_tokens, found.output_tokens) == (7, 3)


def test_an_event_without_text_or_ids_is_no_token() -> None:
    found = sample(token(""), token("", token_ids=[]), token("a"), token("", finish_reason="stop") + END)
    assert found.error is None
    assert (found.output_tokens, found.itl) == (1, ())


def test_without_usage_the_events_and_the_prompt_are_counted() -> None:
    found = sample(token(), token(), token(finish_reason="stop") + END)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (3, 3, 0)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_an_absent_count_of_cached_tokens_is_none_cached(details: Any) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": details}
    found = sample(token(finish_reason="stop"), event(choices=[], usage=usage), END)
    assert (found.error, found.cached_tokens) == (None, 0)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([token(), END], "stream: ended early"),
        ([token(finish_reason="stop")], "stream: ended early"),
        ([token(finish_reason="stop"), b"data: [DONE]"], "stream: ended early"),
        ([], "stream: ended early"),
        ([token(), event(error={"message": "gone", "code": None}), END], "stream: gone"),
        ([token(), event(error={"code": "x", "message": "gone"})], "stream: x"),
        ([token(), b"data: [1]\n\n"], "an event without valid JSON"),
        ([token(), b"data: \xff\n\n"], "an event without valid JSON"),
        ([b'data: {"choices": "none"}\n\n'], "an event without valid JSON"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_failure_of_its_kind(chunks: list[bytes], error: str) -> None:
    assert sample(*chunks).error == error


def test_a_failure_after_the_first_token_keeps_what_was_seen() -> None:
    found = sample(token(), token(), broken=aiohttp.ClientPayloadError("cut"))
    assert found.error == "connection: ClientPayloadError"
    assert found.ttft is not None
    assert found.output_tokens == 2


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (TimeoutError(), "timeout"),
        (aiohttp.ServerTimeoutError(), "timeout"),
        (aiohttp.ServerDisconnectedError(), "connection: ServerDisconnectedError"),
        (ConnectionResetError(), "connection: ConnectionResetError"),
    ],
)
def test_what_breaks_the_connection_is_named(broken: Exception, error: str) -> None:
    assert sample(broken=broken).error == error


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b'{"error": {"code": "overloaded", "type": "t"}}', "429 overloaded"),
        (400, b'{"error": {"type": "invalid_request_error", "code": null}}', "400 invalid_request_error"),
        (404, b'{"error": "not found"}', "404"),
        (404, b'{"detail": "Not Found"}', "404"),
        (502, b"<html>bad gateway</html>", "502"),
        (503, b"", "503"),
        (500, b"[1]", "500"),
        (500, b"\xff", "500"),
    ],
)
def test_a_refusal_is_named_by_its_status_and_code(status: int, body: bytes, error: str) -> None:
    found = sample(body, status=status)
    assert found.error == error
    assert (found.ttft, found.output_tokens) == (None, 0)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_may_end_in_v1_or_a_slash(url: str) -> None:
    load, network = client(Answer([WHOLE]), url)
    asyncio.run(load.send(PROMPT, 0.0))
    assert network.posted[0][0] == "http://h:1/v1/completions"


def test_the_key_is_sent_where_there_is_one_and_extra_fields_win() -> None:
    for key, header in ((None, None), ("", None), ("secret", "Bearer secret")):
        load, network = client(Answer([WHOLE]), api_key=key, extra={"temperature": 1, "top_k": 5})
        asyncio.run(load.send(PROMPT, 0.0))
        _, body, headers = network.posted[0]
        assert headers.get("Authorization") == header
        assert (body["temperature"], body["top_k"], body["prompt"]) == (1, 5, [9, 10, 11])


def test_a_request_that_is_cancelled_gives_its_connection_back_and_makes_no_sample() -> None:
    async def scenario() -> Answer:
        load, network = client(Answer([token()], forever=True))
        task = asyncio.create_task(load.send(PROMPT, 0.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return network.answer

    assert asyncio.run(scenario()).closed
