"""Slices and pods put together, and the API server's client under them."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from mamba_api import names
from mamba_gateway import discovery
from mamba_gateway.api_server import MERGE_PATCH, ApiServer, checked, short
from mamba_gateway.discovery import EngineView, configure
from mamba_gateway.endpoints import Target


class Sink:
    """What the view told, each time: (pod, whether it drains)."""

    def __init__(self) -> None:
        self.told: list[list[tuple[str, bool]]] = []

    def __call__(self, targets: Iterable[Target]) -> None:
        self.told.append([(target.name, target.draining) for target in targets])


def slices(*pods: str) -> dict[str, Any]:
    endpoints = [
        {"addresses": [f"10.0.0.{n}"], "conditions": {"ready": True}, "targetRef": {"name": pod}}
        for n, pod in enumerate(pods, 1)
    ]
    ports = [{"name": "http", "port": 8000}]
    return {"s": {"addressType": "IPv4", "ports": ports, "endpoints": endpoints}}


def pods(**marked: bool) -> dict[str, Any]:
    return {
        name: {
            "metadata": {"name": name, "annotations": {names.ANNOTATION_DRAINING: "now"} if drains else {}}
        }
        for name, drains in marked.items()
    }


def test_marks_that_come_before_the_first_slices_tell_nothing_and_count_from_then_on() -> None:
    sink = Sink()
    view = EngineView(sink)
    view.pods_changed(pods(a=True))
    assert sink.told == []
    view.slices_changed(slices("a", "b"))
    assert sink.told == [[("a", True), ("b", False)]]


def test_no_slices_is_told_once_it_is_known() -> None:
    sink = Sink()
    EngineView(sink).slices_changed({})
    assert sink.told == [[]]


def test_pods_that_change_without_a_mark_tell_nothing_new() -> None:
    sink = Sink()
    view = EngineView(sink)
    view.slices_changed(slices("a"))
    view.pods_changed(pods(a=False, other=False))
    assert len(sink.told) == 1
    view.pods_changed(pods(a=True))
    view.pods_changed(pods(a=True))
    view.pods_changed(pods(a=False))
    assert sink.told == [[("a", False)], [("a", True)], [("a", False)]]


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u%s}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.parametrize(
    ("context", "given", "namespace"),
    [("", None, "default"), (", namespace: models", None, "models"), (", namespace: models", "x", "x")],
)
async def test_the_namespace_is_the_given_one_the_context_s_or_default(
    context: str, given: str | None, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG % context)
    configuration, found = await configure(str(file), given)
    assert (configuration.host, found) == ("https://127.0.0.1:9", namespace)


@pytest.mark.parametrize(
    "text", ["", "current-context: nowhere\ncontexts: []\n", "[1", "text", "clusters: 5\n"], ids=range(5)
)
async def test_an_unusable_kubeconfig_is_told_with_the_option_that_helps(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"no usable Kubernetes configuration: .*--kubeconfig FILE"):
        await configure(str(file), None)


async def test_in_a_pod_without_an_api_server_the_advice_is_the_same(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "namespace"
    file.write_text("models\n")
    monkeypatch.setattr(discovery, "NAMESPACE_FILE", file)
    for variable in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match="--kubeconfig FILE"):
        await configure(None, None)


@pytest.fixture
async def api() -> AsyncIterator[tuple[ApiServer, list[web.Request]]]:
    """The real client before a server that keeps what it saw."""
    seen: list[web.Request] = []

    async def anything(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        return web.Response(status=int(request.query.get("status", "200")), text="said " * 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", anything)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    configuration.api_key = {"BearerToken": "Bearer secret"}
    async with client.ApiClient(configuration) as made:
        yield ApiServer(made), seen
    await runner.cleanup()


async def test_a_request_carries_token_query_and_types(api: tuple[ApiServer, list[web.Request]]) -> None:
    server, seen = api
    answer = await server.request(
        "PATCH", "/a/b", query={"fieldManager": "x y"}, body={"k": 1}, content_type=MERGE_PATCH
    )
    assert await checked(answer)
    [request] = seen
    assert (request.method, request.path, request.query["fieldManager"]) == ("PATCH", "/a/b", "x y")
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"].startswith(MERGE_PATCH)
    assert await request.json() == {"k": 1}


@pytest.mark.parametrize("status", [302, 404, 409, 500])
async def test_any_status_but_2xx_is_an_exception_with_the_start_of_the_body(
    status: int, api: tuple[ApiServer, list[web.Request]]
) -> None:
    answer = await api[0].request("GET", "/x", query={"status": str(status)})
    with pytest.raises(client.ApiException, match="said") as caught:
        await checked(answer)
    assert caught.value.status == status
    assert len(short(caught.value)) <= 300
    assert "\n" not in short(caught.value)
