"""The admin server: what is relayed, who may call, what it refuses."""

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine_api import ApiProcess, serving
from mamba_api.openai import ErrorEnvelope
from mamba_operator.children.engine_admin import get_plan, put_strategy
from tiny_model import write_model

TOKEN = {"authorization": "Bearer admin-token"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def api(model: Path) -> Iterator[ApiProcess]:
    with serving(model) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("admin-token\n")
    with serving(model, admin_host="0.0.0.0", admin_token_file=str(token)) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [
        ("POST", "/admin/flush_cache", "flush_cache"),
        ("GET", "/admin/plan", "plan"),
        ("GET", "/admin/ledger", "ledger"),
        ("GET", "/admin/requests", "requests"),
        ("GET", "/admin/audits", "audits"),
        ("GET", "/admin/speculation", "speculation"),
    ],
)
def test_an_operation_reaches_the_engine_and_its_answer_comes_back(
    api: ApiProcess, method: str, path: str, verb: str
) -> None:
    answer = api.call(method, path, admin=True)
    assert (answer.status, answer.json["verb"]) == (200, verb)


def test_a_strategy_reaches_the_engine_with_its_interval(api: ApiProcess) -> None:
    body = {"strategy": "NoBuffer", "trackInterval": 128}
    answer = api.call("PUT", "/admin/strategy", body, admin=True)
    assert (answer.json["verb"], answer.json["body"]) == ("strategy", body)
    metrics = api.call("GET", "/metrics").body.decode()
    assert 'mambaserve_strategy_info{model="tiny",strategy="NoBuffer"} 1.0' in metrics


def test_an_interval_alone_leaves_the_strategy_as_it_is(api: ApiProcess) -> None:
    answer = api.call("PUT", "/admin/strategy", {"trackInterval": 64}, admin=True)
    assert answer.json["body"] == {"trackInterval": 64}


def test_the_operator_is_understood_and_understands_a_refusal(guarded: ApiProcess) -> None:
    def told(token: str, **body: object) -> tuple[int, str]:
        return asyncio.run(put_strategy("127.0.0.1", token, body, int(urlsplit(guarded.admin).port or 0)))

    assert told("admin-token", strategy="NoBuffer", trackInterval=128)[0] == 200
    assert told("admin-token", strategy="ExtraBuffer", trackInterval=7) == (400, "not a multiple")
    assert told("another", strategy="NoBuffer")[0] == 401


def test_the_operator_is_told_the_plan_with_the_token_and_not_without(guarded: ApiProcess) -> None:
    def told(token: str) -> str | None:
        return asyncio.run(get_plan("127.0.0.1", token, int(urlsplit(guarded.admin).port or 0)))

    assert json.loads(told("admin-token") or "")["verbs"][-1] == "plan"
    assert told("another") is None


def test_an_engine_that_is_gone_is_no_answer() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert asyncio.run(put_strategy("127.0.0.1", "t", {}, port))[0] == 0
        assert asyncio.run(get_plan("127.0.0.1", "t", port)) is None


def test_the_engines_refusal_keeps_its_status(api: ApiProcess) -> None:
    body = {"strategy": "ExtraBuffer", "trackInterval": 7}
    answer = api.call("PUT", "/admin/strategy", body, admin=True)
    assert (answer.status, answer.error["message"]) == (400, "not a multiple")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "strategy"),
        ({"strategy": "Auto"}, "strategy"),
        ({"strategy": 5}, "strategy"),
        ({"strategy": "NoBuffer", "trackInterval": 0}, "trackInterval"),
        ({"strategy": "NoBuffer", "trackInterval": "x"}, "trackInterval"),
        ({"strategy": "NoBuffer", "trackIntervall": 128}, "trackIntervall"),
        ({"maxCheckpointsPerPath": 0}, "maxCheckpointsPerPath"),
        ({"eviction": "FIFO"}, "eviction"),
    ],
)
def test_a_wrong_strategy_is_told_with_its_field(
    api: ApiProcess, body: dict[str, object], param: str
) -> None:
    answer = api.call("PUT", "/admin/strategy", body, admin=True)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admin/nothing", 404), ("GET", "/admin/drain", 405), ("GET", "/v1/models", 404)],
)
def test_wrong_paths_and_methods_have_the_envelope(
    api: ApiProcess, method: str, path: str, status: int
) -> None:
    answer = api.call(method, path, admin=True)
    assert answer.status == status
    ErrorEnvelope.model_validate(answer.json)


def test_a_page_in_a_browser_may_not_call(api: ApiProcess) -> None:
    answer = api.call("POST", "/admin/flush_cache", admin=True, headers={"origin": "http://evil.example"})
    assert (answer.status, answer.error["code"]) == (403, "forbidden")


def test_the_public_port_does_not_serve_admin(api: ApiProcess) -> None:
    assert api.call("POST", "/admin/flush_cache").status == 404


def test_beyond_loopback_every_call_needs_the_token(guarded: ApiProcess) -> None:
    assert guarded.call("GET", "/admin/plan", admin=True).status == 401
    wrong = guarded.call("GET", "/admin/plan", admin=True, headers={"authorization": "Bearer x"})
    assert (wrong.status, wrong.error["code"]) == (401, "invalid_api_key")
    assert guarded.call("GET", "/admin/plan", admin=True, headers=TOKEN).status == 200


def test_the_admin_token_is_no_api_key_and_the_public_port_stays_open(guarded: ApiProcess) -> None:
    assert guarded.call("GET", "/v1/models").status == 200


def test_a_large_admin_body_is_refused(api: ApiProcess) -> None:
    parts = urlsplit(api.admin)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        body = json.dumps({"strategy": "x" * 100_000})
        connection.request("PUT", "/admin/strategy", body, {"content-type": "application/json"})
        assert connection.getresponse().status == 413
    finally:
        connection.close()
