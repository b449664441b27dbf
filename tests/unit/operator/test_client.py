"""Requests of the client to an API server, and its result for each kind of answer."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from handled_api_server import Handler, client
from mamba_kube.access import ClusterAccess, connected
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    NotInSchema,
    ObjectRejected,
    Unreachable,
)
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, SERVICE
from operator_objects import fitting_owner

POD_LIST = {"items": [{"metadata": {"name": "a"}}], "metadata": {}}


def answering(body: Any, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json", headers=headers)

    return handle


class Recorded:
    """Answers everything alike and remembers the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str], Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.requests.append(
            (
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                json.loads(body or "null"),
            )
        )
        return web.json_response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


async def test_apply_is_server_side_by_our_manager_and_wins() -> None:
    seen = Recorded({"metadata": {"resourceVersion": "1"}})
    async with client(seen) as kube:
        await kube.apply(fitting_owner(), subresource="status")

    [(method, path, query, headers, body)] = seen.requests
    assert method == "PATCH"
    assert path == "/apis/serving.mambaserve.io/v1alpha1/namespaces/models/mambadeployments/nano/status"
    assert query == {"fieldManager": "mambaserve-operator", "force": "true", "fieldValidation": "Ignore"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert body["metadata"]["name"] == "nano"


async def test_a_list_is_read_page_by_page_and_its_items_know_their_kind() -> None:
    first = {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}}
    second = {"items": [{"metadata": {"name": "b"}}], "metadata": {}}
    seen = Recorded(first, second)
    async with client(seen) as kube:
        found = await kube.list(SERVICE, "models", selector="a=b")

    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [("Service", "a"), ("Service", "b")]
    assert [query.get("continue") for _, _, query, _, _ in seen.requests] == [None, "more"]
    assert {query["labelSelector"] for _, _, query, _, _ in seen.requests} == {"a=b"}


MADE: dict[str, Any] = {"kind": "Service", "metadata": {"name": "a", "namespace": "models"}}


async def test_what_must_not_exist_yet_is_created_by_our_manager_and_checked_for_unknown_fields() -> None:
    seen = Recorded({"metadata": {"resourceVersion": "7"}})
    async with client(seen) as kube:
        await kube.make(MADE)

    [(method, path, query, _, body)] = seen.requests
    assert (method, path) == ("POST", "/api/v1/namespaces/models/services")
    assert query == {"fieldManager": "mambaserve-operator", "fieldValidation": "Strict"}
    assert body == MADE


async def test_what_cannot_be_read_is_applied_for_a_version_that_nothing_has_to_hear_why() -> None:
    asked: list[tuple[str, Any]] = []
    typo = "failed to create typed patch object (a; v1, Kind=Service): .spec.x: field not declared in schema"

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, json.loads(await request.text())))
        if request.method == "POST":
            return web.json_response({"message": 'strict decoding error: unknown field "spec.x"'}, status=400)
        return web.json_response({"message": typo}, status=500)

    async with client(handle) as kube:
        with pytest.raises(NotInSchema) as caught:
            await kube.make(MADE)

    assert caught.value.path == ".spec.x"
    [(first, _), (second, body)] = asked
    assert (first, second) == ("POST", "PATCH")
    assert body["metadata"]["resourceVersion"] == "1"
    assert "resourceVersion" not in MADE["metadata"]


@pytest.mark.parametrize(("status", "error"), [(409, Conflict), (403, Forbidden), (422, ObjectRejected)])
async def test_a_create_that_is_refused_for_another_reason_is_not_tried_in_another_way(
    status: int, error: type[ClusterError]
) -> None:
    seen: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        return web.json_response({"message": "no"}, status=status)

    async with client(handle) as kube:
        with pytest.raises(error):
            await kube.make(MADE)

    assert seen == ["POST"]


def entry(manager: str, operation: str, *names: str, **more: str) -> dict[str, Any]:
    fields = {"f:spec": {f"f:{name}": {} for name in names}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields, **more}


OURS, THEIRS = "mambaserve-operator", entry("kubectl", "Update", "c")
STATUS_OF_OURS = entry(OURS, "Update", "d", subresource="status")


@pytest.mark.parametrize(
    ("entries", "owned"),
    [
        ([entry(OURS, "Update", "a", "b"), THEIRS], [entry(OURS, "Apply", "a", "b"), THEIRS]),
        (
            [entry(OURS, "Apply", "a"), THEIRS, entry(OURS, "Update", "b")],
            [entry(OURS, "Apply", "b", "a"), THEIRS],
        ),
        ([entry(OURS, "Apply", "a"), THEIRS, STATUS_OF_OURS], None),
        ([], None),
    ],
)
async def test_fields_that_are_ours_by_update_become_ours_by_apply_in_that_very_version(
    entries: list[Any], owned: list[Any] | None
) -> None:
    seen = Recorded({})
    meta = {**MADE["metadata"], "resourceVersion": "9", "managedFields": entries}
    async with client(seen) as kube:
        await kube.own({"kind": "Service", "metadata": meta})

    sent = [(method, body["metadata"]) for method, _, _, _, body in seen.requests]
    assert sent == ([("PATCH", {"resourceVersion": "9", "managedFields": owned})] if owned else [])


async def test_one_of_a_kind_is_found_by_its_name_with_the_right_to_list() -> None:
    seen = Recorded({"items": [{"metadata": {"name": "a"}}], "metadata": {}})
    async with client(seen) as kube:
        assert [one["metadata"]["name"] for one in await kube.list(SERVICE, "models", name="a")] == ["a"]

    [(_, path, query, _, _)] = seen.requests
    assert (path, query["fieldSelector"]) == ("/api/v1/namespaces/models/services", "metadata.name=a")


async def test_objects_are_listed_without_their_bodies_where_these_are_not_wanted() -> None:
    seen = Recorded(POD_LIST)
    async with client(seen) as kube:
        await kube.list(SERVICE, None, metadata_only=True)

    [(_, path, _, headers, _)] = seen.requests
    assert path == "/api/v1/services"
    assert "PartialObjectMetadataList" in headers["Accept"]


async def test_an_object_that_is_not_there_is_none() -> None:
    async with client(answering({"message": "not found"}, 404)) as kube:
        assert await kube.get(SERVICE, "models", "nano") is None


async def test_a_delete_names_the_very_object_and_forgives_its_absence() -> None:
    seen = Recorded({})
    async with client(seen) as kube:
        await kube.delete(SERVICE, "models", "nano", "the-uid")
    async with client(answering({}, 404)) as kube:
        await kube.delete(SERVICE, "models", "nano", "the-uid")

    assert seen.requests[0][4]["preconditions"] == {"uid": "the-uid"}


STATUSES: list[tuple[int, type[ClusterError]]] = [
    (400, ObjectRejected), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict),
    (413, ObjectRejected), (422, ObjectRejected), (429, Unreachable), (500, Unreachable), (503, Unreachable),
    (504, Unreachable),
]  # fmt: skip


@pytest.mark.parametrize(("status", "error"), STATUSES)
async def test_each_refusal_is_an_error_with_the_servers_words(
    status: int, error: type[ClusterError]
) -> None:
    async with client(answering({"kind": "Status", "message": "because"}, status)) as kube:
        with pytest.raises(error) as caught:
            await kube.create({"kind": "Service", "metadata": {"name": "a", "namespace": "b"}})

    assert "because" in str(caught.value)
    assert "POST /api/v1/namespaces/b/services" in str(caught.value)
    assert caught.value.status == status


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", None), ("-3", 0.0)])
async def test_the_servers_wish_to_wait_is_kept(header: str, seconds: float | None) -> None:
    async with client(answering({"message": "busy"}, 429, **{"Retry-After": header})) as kube:
        with pytest.raises(Unreachable) as caught:
            await kube.get(SERVICE, "models", "nano")

    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("body", ["<html>bad gateway</html>", "[1]", ""])
async def test_an_answer_of_something_that_is_no_api_server_is_unreachable(body: str) -> None:
    async with client(answering(body)) as kube:
        with pytest.raises(Unreachable):
            await kube.get(SERVICE, "models", "nano")


async def test_a_server_that_does_not_answer_in_time_is_unreachable() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.6)
        return web.Response()

    async with client(hang, timeout=0.1) as kube:
        with pytest.raises(Unreachable, match="no answer within"):
            await kube.get(SERVICE, "models", "nano")


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with connected(ClusterAccess(Configuration(host="http://127.0.0.1:9"), "default")) as server:
        with pytest.raises(Unreachable):
            await KubeClient(server).get(SERVICE, "models", "nano")


@pytest.mark.parametrize(
    ("answer", "status", "served"),
    [
        ({"resources": [{"name": "mambadeployments"}]}, 200, True),
        ({"resources": [{"name": "others"}]}, 200, False),
        ({}, 404, False),
    ],
)
async def test_whether_the_cluster_knows_our_kind(answer: Any, status: int, served: bool) -> None:
    async with client(answering(answer, status)) as kube:
        assert await kube.serves(MAMBA_DEPLOYMENT) is served


async def test_names_from_users_cannot_leave_their_place_in_a_path() -> None:
    assert SERVICE.path("a/b", "../c?d") == "/api/v1/namespaces/a%2Fb/services/..%2Fc%3Fd"
