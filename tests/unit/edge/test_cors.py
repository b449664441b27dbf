"""Pages of named origins may call the API from a browser; the pages of all others may not."""

from typing import Any

import pytest

from asgi import Asked, ask
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.cors import with_cors
from scripted_engine import Api

PAGE = "https://chat.example.org"


def preflight(app: Any, origin: str, method: str = "POST") -> Asked:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
    }
    return ask(app, "OPTIONS", "/v1/chat/completions", headers=asked.items())


@pytest.fixture
def api(tmp_path: Any) -> Api:
    (tmp_path / "keys").write_text("key-1\n")
    return Api(keys=KeyFile(tmp_path / "keys", "api_key_file"), cors_origin=(PAGE, "http://[::1]:3000"))


async def test_a_preflight_is_answered_before_anybody_asks_for_a_key(api: Api) -> None:
    answer = await preflight(api.app, PAGE).done()
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert {"POST", "GET"} <= set(answer.headers["access-control-allow-methods"].split(", "))
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-request-id"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", f"{PAGE}:444", f"{PAGE}.evil.org"])
async def test_a_page_of_elsewhere_is_refused_and_reads_nothing(api: Api, origin: str) -> None:
    refused = await preflight(api.app, origin).done()
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")
    assert "--cors-origin" in refused.error["message"]
    answer = await ask(api.app, "GET", "/version", headers=[("Origin", origin)]).done()
    for each in (refused, answer):
        assert "access-control-allow-origin" not in each.headers


async def test_the_page_may_read_answers_errors_and_the_headers_it_needs(api: Api) -> None:
    for path, status in (("/version", 200), ("/v1/models", 401), ("/nothing", 404)):
        answer = await ask(api.app, "GET", path, headers=[("Origin", "http://[::1]:3000")]).done()
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == "http://[::1]:3000"
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        assert {"x-request-id", "retry-after"} <= set(exposed)
        assert "origin" in answer.headers["vary"].lower()


async def test_what_no_page_sent_is_answered_as_without_the_setting(api: Api) -> None:
    answer = await ask(api.app, "GET", "/version").done()
    assert not [name for name in answer.headers if name.startswith("access-control-allow")]
    plain = await ask(api.app, "OPTIONS", "/livez").done()
    assert (plain.status, plain.error["code"]) == (405, "method_not_allowed")


async def test_with_a_star_every_page_may_call() -> None:
    answer = await preflight(Api(cors_origin=("*",)).app, "https://any.example.net").done()
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")


async def test_by_default_no_page_of_elsewhere_may_call() -> None:
    api = Api()
    assert (await preflight(api.app, PAGE).done()).status == 405
    assert with_cors(api.app, ()) is api.app
