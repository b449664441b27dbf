"""Every wrong request gets the OpenAI envelope with the right status, type, param and code; nothing else."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine_api import Answer, ApiProcess, serving
from eventually import wait_until
from mamba_api.openai import ErrorEnvelope
from tiny_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
BAD = "invalid_request_error"
VALUE, TYPE, JSON = "invalid_value", "invalid_type", "invalid_json"
MISSING = "missing_required_parameter"
KEY = "secret-key-1"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# one a line\n\n{KEY}\nsecret-key-2\n")
    return path


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[ApiProcess]:
    model = write_model(tmp_path_factory.mktemp("model") / "tiny")
    settings = {"api_key_file": str(keys), "max_body_bytes": 200_000, "max_waiting_requests": 8}
    with serving(model, **settings) as running:
        yield running


def call(api: ApiProcess, method: str, path: str, body: Any = None, **more: Any) -> Answer:
    headers = {"authorization": f"Bearer {KEY}", **more.pop("headers", {})}
    return api.call(method, path, body, headers=headers, **more)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 2, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", "max_tokens": 2, **fields}


def message(content: Any, **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": content, **fields}])


WRONG_FIELDS = [
    # path, body, param, code
    (CHAT, {"model": "tiny"}, "messages", MISSING),
    (CHAT, chat(messages=[]), "messages", VALUE),
    (CHAT, chat(messages="hello"), "messages", TYPE),
    (CHAT, chat(messages=None), "messages", TYPE),
    (CHAT, chat(messages=["hello"]), "messages[0]", TYPE),
    (CHAT, chat(messages=[{"content": "x"}]), "messages[0].role", MISSING),
    (CHAT, chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", VALUE),
    (CHAT, chat(messages=[*HELLO, {"role": "user"}]), "messages[1].content", VALUE),
    (CHAT, message(5), "messages[0].content", TYPE),
    (CHAT, message([{"type": "text"}]), "messages[0].content[0]", VALUE),
    (CHAT, message([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0]", VALUE),
    (CHAT, message([{"text": "no type"}]), "messages[0].content[0].type", MISSING),
    (CHAT, chat(temperature="hot"), "temperature", TYPE),
    (CHAT, chat(temperature=-0.1), "temperature", VALUE),
    (CHAT, chat(temperature=2.01), "temperature", VALUE),
    (CHAT, chat(temperature=True), "temperature", TYPE),
    (CHAT, chat(top_p=-0.1), "top_p", VALUE),
    (CHAT, chat(top_p=1.5), "top_p", VALUE),
    (CHAT, chat(top_k=-2), "top_k", VALUE),
    (CHAT, chat(top_k=1.5), "top_k", TYPE),
    (CHAT, chat(min_p=2), "min_p", VALUE),
    (CHAT, chat(n=0), "n", VALUE),
    (CHAT, chat(n=10**30), "n", VALUE),
    (CHAT, chat(n="2"), "n", TYPE),
    (CHAT, chat(max_tokens=0), "max_tokens", VALUE),
    (CHAT, chat(max_tokens=-1), "max_tokens", VALUE),
    (CHAT, chat(max_completion_tokens=0), "max_completion_tokens", VALUE),
    (CHAT, chat(stop=5), "stop", TYPE),
    (CHAT, chat(stop=[""]), "stop[0]", VALUE),
    (CHAT, chat(stop=["x"] * 33), "stop", VALUE),
    (CHAT, chat(stop=["ok", 5]), "stop[1]", TYPE),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids[0]", VALUE),
    (CHAT, chat(stop_token_ids=[10**6]), "stop_token_ids", VALUE),
    (CHAT, chat(seed="x"), "seed", TYPE),
    (CHAT, chat(seed=2**63), "seed", VALUE),
    (CHAT, chat(presence_penalty=3), "presence_penalty", VALUE),
    (CHAT, chat(frequency_penalty=-3), "frequency_penalty", VALUE),
    (CHAT, chat(repetition_penalty=0), "repetition_penalty", VALUE),
    (CHAT, chat(logit_bias={"x": 1}), "logit_bias", VALUE),
    (CHAT, chat(logit_bias={"5": 101}), "logit_bias", VALUE),
    (CHAT, chat(logit_bias={"5": "1"}), "logit_bias", TYPE),
    (CHAT, chat(logit_bias={"999999": 1}), "logit_bias", VALUE),
    (CHAT, chat(logit_bias=[1]), "logit_bias", TYPE),
    (CHAT, chat(logprobs=1), "logprobs", TYPE),
    (CHAT, chat(top_logprobs=2), "top_logprobs", VALUE),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", VALUE),
    (CHAT, chat(stream="yes"), "stream", TYPE),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options", VALUE),
    (CHAT, chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", TYPE),
    (CHAT, chat(response_format={"type": "json_schema"}), "response_format", VALUE),
    (CHAT, chat(response_format={"type": "json_object", "json_schema": {}}), "response_format", VALUE),
    (CHAT, chat(structured_outputs={}), "structured_outputs", VALUE),
    (CHAT, chat(structured_outputs={"regex": "a", "choice": ["a"]}), "structured_outputs", VALUE),
    (CHAT, chat(structured_outputs={"choice": []}), "structured_outputs.choice", VALUE),
    (
        CHAT,
        chat(structured_outputs={"regex": "a"}, response_format={"type": "text"}),
        "structured_outputs",
        VALUE,
    ),
    (CHAT, chat(response_format={"type": "xml"}), "response_format.type", VALUE),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function", MISSING),
    (CHAT, chat(tools=[{"type": "search"}]), "tools[0].type", VALUE),
    (CHAT, chat(tool_choice="required"), "tool_choice", VALUE),
    (CHAT, chat(min_tokens=3), "min_tokens", VALUE),
    (CHAT, chat(priority=1.5), "priority", TYPE),
    (CHAT, chat(cache_salt="x" * 257), "cache_salt", VALUE),
    (CHAT, chat(prompt_logprobs=-1), "prompt_logprobs", VALUE),
    (CHAT, chat(ignore_eos="no"), "ignore_eos", TYPE),
    (CHAT, chat(model=5), "model", TYPE),
    (CHAT, message("refuse me"), "messages", "chat_template_error"),
    (CHAT, message("long " * 300), "messages", "context_length_exceeded"),
    (CHAT, chat(max_tokens=1000), "max_tokens", "context_length_exceeded"),
    (TEXT, {"model": "tiny"}, "prompt", MISSING),
    (TEXT, text(prompt=5), "prompt", TYPE),
    (TEXT, text(prompt=None), "prompt", TYPE),
    (TEXT, text(prompt=[]), "prompt", VALUE),
    (TEXT, text(prompt=[[]]), "prompt", VALUE),
    (TEXT, text(prompt=[1, "x"]), "prompt[1]", TYPE),
    (TEXT, text(prompt=[-1]), "prompt[0]", VALUE),
    (TEXT, text(prompt=[[1, 2], [10**6]]), "prompt", VALUE),
    (TEXT, text(prompt=["x"] * 9), "prompt", VALUE),
    (TEXT, text(prompt="long " * 300), "prompt", "context_length_exceeded"),
    (TEXT, text(max_tokens=0), "max_tokens", VALUE),
    (TEXT, text(logprobs=21), "logprobs", VALUE),
    (TEXT, text(logprobs=True), "logprobs", TYPE),
    (TEXT, text(best_of=2), "best_of", VALUE),
    (TEXT, text(suffix="end"), "suffix", VALUE),
    (TEXT, text(echo="yes"), "echo", TYPE),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), WRONG_FIELDS, ids=lambda value: str(value)[:48])
def test_a_wrong_field_is_named(api: ApiProcess, path: str, body: Any, param: str, code: str) -> None:
    answer = call(api, "POST", path, body)
    error = answer.error
    assert (answer.status, error["type"], error["param"], error["code"]) == (400, BAD, param, code)
    assert len(error["message"]) > 8
    assert "pydantic" not in error["message"]


BROKEN_BODIES = [
    # raw body, status, code
    (b"", 400, JSON),
    (b"{", 400, JSON),
    (b'{"model": "tiny",}', 400, JSON),
    (b"null", 400, JSON),
    (b"[]", 400, JSON),
    (b'"text"', 400, JSON),
    (b"5", 400, JSON),
    (b"\xff\xfe{}", 400, JSON),
    (b'{"prompt": "\xff"}', 400, JSON),
    (b'{"prompt": "\\ud800"}', 400, JSON),
    (b'{"prompt": "x", "temperature": NaN}', 400, JSON),
    (b'{"prompt": "x", "temperature": Infinity}', 400, JSON),
    (b'{"prompt": "x", "temperature": 1e999}', 400, None),
    (b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}", 400, None),
    (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, JSON),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, JSON),
    (b'{"prompt": "' + b"x" * 200_000 + b'"}', 413, "request_too_large"),
    (b"<xml/>", 400, JSON),
    (b"prompt=x", 400, JSON),
    (b'{"prompt": "x"} {"prompt": "y"}', 400, JSON),
    (b'\xef\xbb\xbf{"prompt": "x"}', 400, JSON),
]


@pytest.mark.parametrize(("raw", "status", "code"), BROKEN_BODIES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_broken_body_is_told(api: ApiProcess, path: str, raw: bytes, status: int, code: str | None) -> None:
    answer = call(api, "POST", path, raw=raw)
    assert answer.status == status
    ErrorEnvelope.model_validate(answer.json)
    assert answer.error["type"] == BAD
    assert code is None or answer.error["code"] == code


def raw_request(api: ApiProcess, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send a request with exactly these headers."""
    parts = urlsplit(api.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x=y"]
)
def test_a_body_that_is_not_declared_json_is_415(api: ApiProcess, kind: str) -> None:
    answer = call(api, "POST", CHAT, chat(), headers={"content-type": kind})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/vnd.x+json"]
)
def test_json_under_its_other_names_is_taken(api: ApiProcess, kind: str) -> None:
    assert call(api, "POST", CHAT, chat(), headers={"content-type": kind}).status == 200


def test_a_body_without_a_declared_type_is_taken_as_json(api: ApiProcess) -> None:
    body = json.dumps(chat()).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-length": str(len(body))}
    assert raw_request(api, "POST", CHAT, body, headers).status == 200


def test_a_declared_length_over_the_limit_is_refused_before_the_body_comes(api: ApiProcess) -> None:
    headers = {
        "authorization": f"Bearer {KEY}", "content-length": "999999999999", "content-type": "application/json"
    }  # fmt: skip
    answer = raw_request(api, "POST", CHAT, b"", headers)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_chunked_body_over_the_limit_is_refused(api: ApiProcess) -> None:
    chunk = b"186a0\r\n" + b" " * 100_000 + b"\r\n"
    headers = {"authorization": f"Bearer {KEY}", "transfer-encoding": "chunked"}
    answer = raw_request(api, "POST", CHAT, chunk * 3 + b"0\r\n\r\n", headers)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other/model", 404, "model_not_found"),
        ("POST", "/v1/audio/speech", 404, "not_found"),
        ("POST", "/v1/completions/", 404, "not_found"),
        ("GET", "/admin/plan", 404, "not_found"),
        ("GET", "/%2e%2e/etc/passwd", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/readyz", 405, "method_not_allowed"),
    ],
)
def test_wrong_paths_and_methods_have_the_envelope_too(
    api: ApiProcess, method: str, path: str, status: int, code: str
) -> None:
    answer = call(api, method, path)
    ErrorEnvelope.model_validate(answer.json)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (status, code, BAD)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {KEY}",
        KEY,
        "Bearer # one a line",
        "Bearer \xff",
    ],
)
def test_without_an_accepted_key_nothing_below_v1_answers(api: ApiProcess, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/v1/nothing")):
        answer = api.call(method, path, chat() if method == "POST" else None, headers=headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.body.decode()


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/version", "/openapi.json"])
def test_probes_and_metrics_need_no_key(api: ApiProcess, path: str) -> None:
    assert api.call("GET", path).status == 200


def test_a_key_that_is_added_or_removed_counts_at_once(api: ApiProcess, keys: Path) -> None:
    before = keys.read_text()
    new = {"authorization": "Bearer new-key"}
    try:
        assert api.call("GET", "/v1/models", headers=new).status == 401
        keys.write_text("new-key\n")
        assert api.call("GET", "/v1/models", headers=new).status == 200
        assert call(api, "GET", "/v1/models").status == 401
        keys.write_text("\n")
        wait_until(lambda: api.call("GET", "/v1/models", headers=new).status == 401)
    finally:
        keys.write_text(before)


class TestRequestId:
    def test_a_given_one_comes_back(self, api: ApiProcess) -> None:
        answer = call(api, "GET", "/v1/models", headers={"x-request-id": "trace-42/a"})
        assert answer.headers["x-request-id"] == "trace-42/a"

    @pytest.mark.parametrize("given", ["", "   ", "é\u00a0", "\t"])
    def test_an_unusable_one_is_replaced(self, api: ApiProcess, given: str) -> None:
        answer = call(api, "GET", "/v1/models", headers={"x-request-id": given})
        assert len(answer.headers["x-request-id"]) == 32

    def test_what_could_break_a_log_line_is_taken_out(self, api: ApiProcess) -> None:
        answer = call(api, "GET", "/v1/models", headers={"x-request-id": 'a"b{c}d e' + "x" * 300})
        assert answer.headers["x-request-id"] == ("abcde" + "x" * 300)[:128]

    def test_errors_have_one_too(self, api: ApiProcess) -> None:
        assert call(api, "GET", "/nothing", headers={"x-request-id": "id7"}).headers["x-request-id"] == "id7"

    def test_it_is_in_the_log_line_of_the_request(self, api: ApiProcess) -> None:
        call(api, "POST", CHAT, chat(), headers={"x-request-id": "find-me"})
        done = api.wait_log("request", request_id="find-me")
        assert (done["status"], done["generated_tokens"]) == (200, 2)


def test_unknown_fields_are_ignored_and_logged(api: ApiProcess) -> None:
    body = chat(documents=[], thinking=True, unheard_of=1)
    assert call(api, "POST", CHAT, body, headers={"x-request-id": "unknown-fields"}).status == 200
    line = api.wait_log("unknown_fields_ignored", request_id="unknown-fields")
    assert line["fields"] == ["thinking", "unheard_of"]
    assert line["level"] == "warning"


def test_traceparent_reaches_the_log(api: ApiProcess) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    assert call(api, "POST", CHAT, chat(), headers=headers).status == 200
    assert api.wait_log("request", trace_id=trace)["status"] == 200


@pytest.mark.parametrize("traceparent", ["garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff"])
def test_a_malformed_traceparent_is_ignored(api: ApiProcess, traceparent: str) -> None:
    assert call(api, "POST", CHAT, chat(), headers={"traceparent": traceparent}).status == 200


def test_bytes_that_are_no_http_close_the_connection_and_nothing_else(api: ApiProcess) -> None:
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 not http at all\r\n\r\n")
        assert b"400" in raw.recv(1000)
    assert call(api, "GET", "/v1/models").status == 200


class TestOverload:
    def test_more_waiting_prompts_than_allowed_are_told_to_come_back(self, api: ApiProcess) -> None:
        body = text(prompt=["x"] * 8, cache_salt="wait")
        with socket.create_connection(
            (urlsplit(api.url).hostname or "", urlsplit(api.url).port or 0), timeout=10
        ) as raw:
            data = json.dumps(body).encode()
            head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            raw.sendall(head.encode() + data)
            answer = None
            for _ in range(50):
                answer = call(api, "POST", TEXT, text(cache_salt="probe"))
                if answer.status == 429:
                    break
            assert answer is not None
            assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
            assert int(answer.headers["retry-after"]) >= 1
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        assert call(api, "POST", TEXT, text()).status == 200
