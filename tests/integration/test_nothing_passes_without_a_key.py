"""Without a valid key nothing reaches an engine: at the gateway, the engine's ports, the endpoint picker.

Whatever the bytes are. Servers end idle and unfinished connections soon here, so that each exchange ends.
"""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine_api import ApiProcess, serving
from eventually import wait_until
from picker_harness import BUFFERED, DUPLEX, ENGINES, JSON, PickerHarness
from prefork import FORK_SERVER, ForkedProcess
from raw_requests import (
    BODY,
    FRAMINGS,
    MARK,
    OPEN_PATHS,
    RawRequest,
    exchange,
    keyless_requests,
    one_twist,
    statuses,
)
from recording_upstream import RecordingUpstream, recording_upstream
from servers import call
from tiny_model import write_model

KEY, TOKEN, ENGINE_KEY = "sk-Accepted-17", "tk-Admin-29", "ek-Engine-31"
SOON = {"header_timeout": 0.25, "body_timeout": 0.25, "keep_alive_timeout": 0.25}
"""Seconds until a connection that owes something is ended; what is sent at once comes sooner."""
GUARDED = (
    "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/v1/conversations",
    "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/tokenize", "/detokenize",
    "/v1/conversations/conv_1", "/v1/conversations/conv_1/items",
    "/v1/models", "/v1/models/m", "/v1/status", "/v1/tokenizer",
    "/v1/handover", "/v1/prefix_changes", "/v1/usage_changes", "/v1/routing/decisions", "/v1/usage",
    "/admin/drain",
    "/admin/flush_cache", "/admin/ledger",
)  # fmt: skip
WITH_BODY = (
    "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/v1/conversations", "/v1/conversations/conv_1", "/v1/conversations/conv_1/items", "/v1/embeddings",
    "/v1/rerank", "/v2/rerank", "/v1/score", "/tokenize", "/detokenize",
)  # fmt: skip
ADMIN = ("/admin/drain", "/admin/flush_cache", "/admin/plan", "/admin/ledger", "/admin/requests")
DOCUMENT = "/openapi.json"
"""Path of the document of a server, which anybody may read."""
LEAST_OPERATIONS = {"gateway": 20, "engine": 20, "admin": 5}
"""Fewest operations that each door documents, so that an empty document passes no test."""
AT_ONCE = 60
"""Connections that are open together."""
many = settings(max_examples=3, suppress_health_check=list(HealthCheck))


def lists_of(paths: tuple[str, ...], key: str) -> st.SearchStrategy[list[RawRequest]]:
    return st.lists(keyless_requests(paths, key), min_size=AT_ONCE, max_size=AT_ONCE)


class Gateway:
    """A process that asks for a key, in front of an engine that notes every byte."""

    def __init__(self, process: ForkedProcess, url: str, upstream: RecordingUpstream) -> None:
        self.process, self.url, self.upstream = process, url, upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text(f"# a comment\n{KEY} team\n")
    (folder / "engine").write_text(f"{ENGINE_KEY}\n")
    with recording_upstream() as upstream:
        options = {
            "backend": upstream.url, "port": 0, "api-key-file": folder / "keys",
            "backend-key-file": folder / "engine", **SOON,
        }  # fmt: skip
        words = [
            word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        log = folder / "log"
        with log.open("wb") as sink:
            process = FORK_SERVER.start(
                "-m", "mamba_cli", "gateway", *words, env={"PATH": ""}, stderr=sink.fileno()
            )
        try:
            found = wait_until(lambda: re.search(r"ready at (http://\S+)", log.read_text()), "the gateway")
            assert found is not None
            yield Gateway(process, found[1].removesuffix("/v1"), upstream)
        finally:
            process.kill()
            process.wait()
            process.close()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "keys").write_text(f"{KEY}\n")
    (folder / "token").write_text(f"{TOKEN}\n")
    files = {"api_key_file": str(folder / "keys"), "admin_token_file": str(folder / "token")}
    with serving(write_model(folder / "tiny"), **files, **SOON) as running:
        yield running


def assert_refused(requests: list[RawRequest], answers: list[bytes]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        wrong = [
            status
            for status in statuses(answer)
            if not (400 <= status < 500 or (request.is_open and status == 200))
        ]
        assert not wrong, (request.raw, answer)


def keyed(path: str, key: str, framing: bytes, body: bytes) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
    )
    return "\r\n".join(lines).encode() + b"\r\n" + framing + b"\r\n\r\n" + body


@given(requests=lists_of(GUARDED + OPEN_PATHS, KEY))
@example(requests=one_twist("/v1/completions", KEY))
@example(requests=one_twist("/v1/chat/completions", KEY))
@many
def test_the_gateway_lets_nothing_pass(gateway: Gateway, requests: list[RawRequest]) -> None:
    before = gateway.upstream.requests
    assert_refused(requests, exchange(gateway.url, [each.raw for each in requests]))
    assert gateway.upstream.requests == before
    assert not any(MARK in each for each in gateway.upstream.connections)
    assert gateway.process.poll() is None


@pytest.mark.parametrize(
    "credentials",
    [
        "",
        "Bearer",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {ENGINE_KEY}",
        f"Basic {KEY}",
        KEY,
        "Bearer team",
    ],
)
def test_what_is_right_in_all_else_is_401(gateway: Gateway, credentials: str) -> None:
    before = gateway.upstream.requests
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {credentials}\r\n"
    raw = head.encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    (answer,) = exchange(gateway.url, [raw])
    assert statuses(answer) == [401]
    assert b'"invalid_api_key"' in answer
    assert gateway.upstream.requests == before


@pytest.mark.parametrize("credentials", [b"", b"Authorization: Bearer wrong\r\n", b"x-api-key: wrong\r\n"])
def test_a_wrong_key_is_refused_while_the_body_has_not_come(
    gateway: Gateway, api: ApiProcess, credentials: bytes
) -> None:
    """The head announces a body that nobody sends, so a server that wanted it first would answer 408."""
    rest = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
    heads = [b"POST %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), rest, credentials) for path in WITH_BODY]
    for url in (gateway.url, api.url):
        assert [statuses(answer) for answer in exchange(url, heads)] == [[401]] * len(heads)


def documented_operations(url: str) -> list[tuple[str, str]]:
    """Return method and path of every operation of a server, as its own document lists them."""
    status, document = call(url + DOCUMENT)
    assert status == 200
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "x1", path))
        for path, operations in document["paths"].items()
        for method in operations
        if path not in (*OPEN_PATHS, DOCUMENT)
    ]


@pytest.mark.parametrize("credentials", [b"", b"Authorization: Bearer wrong\r\n"])
@pytest.mark.parametrize("door", ["gateway", "engine", "admin"])
def test_every_route_that_a_server_has_wants_a_key_before_a_body(
    gateway: Gateway, api: ApiProcess, door: str, credentials: bytes
) -> None:
    """A route that is new is in the document, so that no list of this file has to name it."""
    url = {"gateway": gateway.url, "engine": api.url, "admin": api.admin}[door]
    operations = documented_operations(url)
    rest = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n" + credentials + b"\r\n"
    heads = [b"%b %b HTTP/1.1\r\n%b" % (method.encode(), path.encode(), rest) for method, path in operations]
    answers = [statuses(answer) for answer in exchange(url, heads)]
    assert {each: got for each, got in zip(operations, answers, strict=True) if got != [401]} == {}
    assert len(operations) >= LEAST_OPERATIONS[door]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_nothing_rides_on_a_request_that_may_pass(gateway: Gateway, path: str) -> None:
    """A body of doubtful length, with a request in it or behind it, from somebody who has a key."""
    before = Counter(gateway.upstream.requests)
    raw = [keyed(path, KEY, framing, body) for framing, body in FRAMINGS]
    answers = [statuses(answer) for answer in exchange(gateway.url, raw)]
    assert all(status == 200 or 400 <= status < 500 for each in answers for status in each)
    passed = [status for each in answers for status in each].count(200)
    assert passed >= 3  # those whose first request is right
    came = list((Counter(gateway.upstream.requests) - before).elements())
    # An answer each, a head each, and the body that the head announced.
    assert len(came) == passed
    for request in came:
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.startswith(f"POST {path} HTTP/1.1\r\n".encode())
        assert head.count(b"HTTP/1.1") == 1
        assert f"Bearer {ENGINE_KEY}".encode() in head
        assert KEY.encode() not in request
        assert body == BODY


@given(requests=lists_of(GUARDED + OPEN_PATHS, KEY))
@example(requests=one_twist("/v1/completions", KEY))
@many
def test_an_engine_computes_nothing(api: ApiProcess, requests: list[RawRequest]) -> None:
    assert_refused(requests, exchange(api.url, [each.raw for each in requests]))
    assert api.engine(TOKEN)["seen"] == []
    assert api.process.poll() is None


@given(requests=lists_of(ADMIN, TOKEN))
@example(requests=one_twist("/admin/drain", TOKEN))
@many
def test_nobody_administers_an_engine(api: ApiProcess, requests: list[RawRequest]) -> None:
    assert_refused(requests, exchange(api.admin, [each.raw for each in requests]))
    assert set(api.engine(TOKEN)["verbs"]) == {"requests"}  # what this test asks
    assert api.call("GET", "/readyz").status == 200


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_probes_and_scrapes_need_no_key_and_show_none(gateway: Gateway, api: ApiProcess, path: str) -> None:
    raw = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    for url in (gateway.url, api.url):
        (answer,) = exchange(url, [raw])
        assert statuses(answer) == [200]
        assert not any(word.encode() in answer for word in (KEY, TOKEN, ENGINE_KEY))


def test_the_engine_with_a_key_is_the_proof_that_others_were_looked_for(api: ApiProcess) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    before = len(api.engine(TOKEN)["seen"])
    headers = {"authorization": f"Bearer {KEY}"}
    assert api.call("POST", "/v1/completions", body, headers=headers).status == 200
    assert len(api.engine(TOKEN)["seen"]) == before + 1


HEADER_SETS = st.lists(
    st.sampled_from(
        [("authorization", f"Bearer {KEY}x"), ("Authorization", "Bearer"), ("AUTHORIZATION", f"Basic {KEY}"),
         ("authorization", f"Bearer {KEY}\x00"), ("authorization", f"Bearer {KEY},Bearer {KEY}"),
         ("authorization ", f"Bearer {KEY}"), (" authorization", f"Bearer {KEY}"),
         ("x-api-key", f"Bearer {KEY}"),
         ("proxy-authorization", f"Bearer {KEY}"), ("cookie", f"authorization=Bearer {KEY}"), ("", KEY),
         ("content-length", "-1"), ("content-length", "0"), ("transfer-encoding", "chunked"),
         ("x-gateway-destination-endpoint", ENGINES[0]), (":authority", KEY), (":path", "/livez")]
    ),
    max_size=4,
)  # fmt: skip
PICKED_PATHS = st.sampled_from(
    (
        "/v1/completions",
        "//v1/completions",
        "/v1/%63ompletions",
        "/v1/models",
        "/livez",
        "/metrics",
        "*",
        "",
        "\x00",
    )
)


@given(
    st.lists(
        st.tuples(PICKED_PATHS, HEADER_SETS, st.sampled_from((DUPLEX, BUFFERED, None))),
        min_size=40,
        max_size=40,
    )
)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
async def test_the_picker_names_no_engine(
    tmp_path_factory: pytest.TempPathFactory, heads: list[tuple[str, list[tuple[str, str]], int | None]]
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    picker = PickerHarness(keys=keys)
    picker.engines(*ENGINES)
    async with picker.running():
        for path, headers, mode in heads:
            stream = picker.stream()
            await stream.headers(*headers, path=path, mode=mode)
            found = await stream.read()
            assert found.HasField("immediate_response"), (path, headers)
            assert found.immediate_response.status.code == 401, (path, headers)
            assert not found.dynamic_metadata.fields
            await stream.ends()
        assert picker.is_empty()
        assert await picker.stream().picked(JSON, ("authorization", f"Bearer {KEY}")) == list(ENGINES)
