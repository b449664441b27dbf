"""The real client before a server that keeps what it saw: what is sent, and what each answer becomes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from mamba_kube.access import ClusterAccess, connected
from mamba_kube.api_server import MERGE_PATCH, ApiServer, refusal
from mamba_kube.errors import MAX_MESSAGE, ApiError, short
from raw_engine import OK, RawEngine, says


@pytest.fixture
async def api() -> AsyncIterator[tuple[ApiServer, list[web.Request]]]:
    """Yield a server that answers with `body` and `status` of the query."""
    seen: list[web.Request] = []

    async def anything(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        return web.Response(
            status=int(request.query.get("status", "200")),
            text=request.query.get("body", "{}"),
            headers={"Retry-After": "7"},
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", anything)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    configuration.api_key = {"BearerToken": "Bearer secret"}
    async with connected(ClusterAccess(configuration, "default")) as server:
        yield server, seen
    await runner.cleanup()


async def test_a_request_carries_token_query_and_types(api: tuple[ApiServer, list[web.Request]]) -> None:
    server, seen = api
    answer = await server.request(
        "PATCH", "/a/b", query={"body": '{"x y": 1}'}, body={"k": 1}, content_type=MERGE_PATCH
    )
    assert answer == {"x y": 1}
    [request] = seen
    assert (request.method, request.path) == ("PATCH", "/a/b")
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"].startswith(MERGE_PATCH)
    assert await request.json() == {"k": 1}


@pytest.mark.parametrize("status", [302, 404, 409, 500])
async def test_any_status_but_2xx_is_an_error_with_the_server_s_words(
    status: int, api: tuple[ApiServer, list[web.Request]]
) -> None:
    query = {"status": str(status), "body": '{"message": "%s"}' % ("words " * 500)}
    with pytest.raises(ApiError, match="GET /x: words") as caught:
        await api[0].request("GET", "/x", query=query)
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)
    assert len(str(caught.value)) < MAX_MESSAGE + 20
    assert len(short(caught.value)) <= 300
    assert "\n" not in short(caught.value)


async def test_an_open_response_of_any_status_is_the_caller_s_to_judge(
    api: tuple[ApiServer, list[web.Request]],
) -> None:
    query = {"status": "410", "body": '{"message": "too old"}'}
    response = await api[0].open("GET", "/x", query=query, timeout=5)
    with contextlib.closing(response):
        error = await refusal("GET", "/x", response)
    assert (error.status, str(error)) == (410, "GET /x: too old")


@pytest.mark.parametrize("body", ["<html>", "[1]", "", "null"])
async def test_an_answer_of_something_else_than_an_api_server_is_no_answer(
    body: str, api: tuple[ApiServer, list[web.Request]]
) -> None:
    with pytest.raises(ApiError, match="GET /x") as caught:
        await api[0].request("GET", "/x", query={"body": body})
    assert caught.value.status == 0


async def test_nobody_who_listens_is_no_answer() -> None:
    async with connected(ClusterAccess(Configuration(host="http://127.0.0.1:9"), "default")) as server:
        with pytest.raises(ApiError, match="GET /x") as caught:
            await server.request("GET", "/x")
    assert caught.value.status == 0


async def test_a_caller_s_own_time_limit_is_no_error_of_the_api_server() -> None:
    async with (
        RawEngine(says(hold=True)) as silent,
        connected(ClusterAccess(Configuration(host=silent.url), "default")) as server,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await server.request("GET", "/x")


@pytest.mark.parametrize(("bypassed", "asked"), [("", 1), ("api.test", 0)])
async def test_the_api_server_is_asked_through_the_proxy_of_the_environment(
    bypassed: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawEngine(says(OK)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:secret@"))
        monkeypatch.setenv("no_proxy", bypassed)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nowhere)
        async with connected(ClusterAccess(Configuration(host="http://api.test"), "default")) as server:
            with contextlib.suppress(ApiError):
                await server.request("GET", "/x")
    assert len(proxy.requests) == asked
    assert all(
        head.startswith(b"GET http://api.test/x ") and b"Proxy-Authorization: Basic " in head
        for head, _ in proxy.requests
    )


async def nowhere(*_: object, **__: object) -> list[object]:
    """Return a name that no server knows."""
    raise OSError("no such host")


async def test_a_request_starts_no_thread(
    api: tuple[ApiServer, list[web.Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refused)
    assert await api[0].request("GET", "/x") == {}
