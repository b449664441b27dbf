"""The API server in trouble: expired pages, cut answers, floods of words; each becomes one of our errors."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from handled_api_server import client
from mamba_kube.errors import MAX_MESSAGE
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    ObjectRejected,
    Unreachable,
    of_status,
)
from mamba_operator.objects.kinds import BY_NAME, EVENT, LEASE, MAMBA_DEPLOYMENT, NODE, SERVICE, Kind
from operator_objects import fitting_owner


def page(name: str, more: str = "") -> web.Response:
    return web.json_response({"items": [{"metadata": {"name": name}}], "metadata": {"continue": more}})


def failure(status: int, message: str = "no") -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)


async def test_a_list_whose_next_page_has_expired_is_no_list_and_can_be_asked_for_again() -> None:
    answers = [page("a", "next"), failure(410, "the continue token is too old"), page("a", "next"), page("b")]

    async def handle(request: web.Request) -> web.StreamResponse:
        # A new list begins at its beginning, without the token that expired.
        assert ("continue" in request.query) == (len(answers) % 2 == 1)
        return answers.pop(0)

    async with client(handle) as kube:
        with pytest.raises(Unreachable, match="too old") as caught:
            await kube.list(SERVICE, "models")
        again = await kube.list(SERVICE, "models")

    assert caught.value.status == 410
    assert [one["metadata"]["name"] for one in again] == ["a", "b"]


@pytest.mark.parametrize("body", [{}, {"items": None}, {"items": [], "metadata": None}], ids=str)
async def test_a_list_of_nothing_is_empty(body: dict[str, Any]) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    async with client(handle) as kube:
        assert await kube.list(SERVICE, "models") == []


async def test_an_answer_that_is_cut_off_is_unreachable() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"metadata": ')
        assert request.transport is not None
        request.transport.close()
        return response

    async with client(handle) as kube:
        with pytest.raises(Unreachable, match="GET /api/v1/namespaces/models/services/nano"):
            await kube.get(SERVICE, "models", "nano")


async def test_an_answer_that_begins_and_never_ends_is_given_up() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(20):
            await response.write(b" ")
            await asyncio.sleep(0.03)
        return response

    async with client(handle, timeout=0.1) as kube:
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await kube.get(SERVICE, "models", "nano")


async def test_a_caller_that_is_cancelled_is_not_told_of_an_unreachable_server() -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return page("a")

    async with client(handle) as kube:
        asking = asyncio.create_task(kube.list(SERVICE, "models"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_pass_that_is_out_of_time_is_told_from_a_request_that_is() -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return page("a")

    async with client(handle, timeout=5) as kube:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await kube.list(SERVICE, "models")


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe\x00", b"x" * 5000, b"", b'{"message": 5}', b'["message"]', b"null"],
    ids=lambda one: one[:12],
)
async def test_any_words_of_a_refusal_are_told_and_bounded(body: bytes) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(status=422, body=body)

    async with client(handle) as kube:
        with pytest.raises(ObjectRejected) as caught:
            await kube.apply(fitting_owner())

    assert str(caught.value).startswith("PATCH /apis/serving.mambaserve.io/v1alpha1/")
    assert len(str(caught.value)) < MAX_MESSAGE + 200


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("1.5", 1.5), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("1e400", float("inf"))],
)
async def test_a_wish_to_wait_in_any_form_is_seconds_or_nothing(header: str, seconds: float | None) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "busy"}, status=503, headers={"Retry-After": header})

    async with client(handle) as kube:
        with pytest.raises(Unreachable) as caught:
            await kube.serves(MAMBA_DEPLOYMENT)

    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(("status", "kind"), [
    (400, ObjectRejected), (401, Forbidden), (404, NotFound), (405, ObjectRejected), (406, Unreachable),
    (408, Unreachable), (409, Conflict), (410, Unreachable), (415, ObjectRejected), (418, Unreachable),
    (429, Unreachable), (500, Unreachable), (502, Unreachable), (507, Unreachable),
])  # fmt: skip
def test_every_status_is_one_of_our_errors(status: int, kind: type[ClusterError]) -> None:
    error = of_status(status, "why", 3.0)

    assert type(error) is kind
    assert (str(error), error.status, error.retry_after) == ("why", status, 3.0)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('pods "a" is forbidden: User "system:serviceaccount:a:b" cannot list resource "pods"', Forbidden),
        ('roles "a" is forbidden: user "b" is attempting to grant RBAC permissions not held', Forbidden),
        ('services "a" is forbidden: exceeded quota: q, requested: services=1', ObjectRejected),
        (
            'persistentvolumeclaims "a" is forbidden: only dynamically provisioned pvc can be resized',
            ObjectRejected,
        ),
        ('admission webhook "v.example.com" denied the request: no', ObjectRejected),
    ],
)
def test_a_rule_of_an_admission_plugin_is_told_apart_from_a_missing_right(
    message: str, kind: type[ClusterError]
) -> None:
    assert type(of_status(403, message)) is kind


async def test_a_kind_whose_discovery_is_refused_is_not_said_to_be_absent() -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return failure(403)

    async with client(handle) as kube:
        with pytest.raises(Forbidden):
            await kube.serves(MAMBA_DEPLOYMENT)


async def test_what_is_created_replaced_and_counted_goes_where_it_belongs() -> None:
    seen: list[tuple[str, str, str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        seen.append((request.method, request.path, request.headers["Content-Type"]))
        return web.json_response({"metadata": {}})

    lease = {"kind": "Lease", "metadata": {"name": "l", "namespace": "n"}}
    async with client(handle) as kube:
        await kube.create(lease)
        await kube.replace(lease)
        await kube.merge(EVENT, "n", "e", {"count": 2})

    assert seen == [
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/n/leases", "application/json"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", "application/json"),
        ("PATCH", "/api/v1/namespaces/n/events/e", "application/merge-patch+json"),
    ]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (SERVICE, "/api/v1/namespaces/n/services/x/status"),
        (LEASE, "/apis/coordination.k8s.io/v1/namespaces/n/leases/x/status"),
        (NODE, "/api/v1/nodes/x/status"),
    ],
)
def test_a_path_has_its_group_its_namespace_and_its_part(kind: Kind, path: str) -> None:
    assert kind.path("n", "x", "status") == path


@pytest.mark.parametrize("kind", BY_NAME.values(), ids=lambda one: one.kind)
def test_group_and_version_make_up_the_api_version(kind: Kind) -> None:
    assert "/".join(part for part in (kind.group, kind.version) if part) == kind.api_version
    assert json.dumps(kind.path("n")).count("//") == 0
