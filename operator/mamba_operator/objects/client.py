"""Client of the API server with the operations of the operator: get, list, server-side apply, create, delete.

It adds kinds, pages and the field manager to `mamba_kube`. Bodies are plain data; every failure is one of
`errors`. It also converts the ownership of the operator's fields from Update to Apply.
"""

import builtins
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any

from mamba_api.names import FIELD_MANAGER
from mamba_kube.api_server import APPLY_PATCH, JSON, MERGE_PATCH, METADATA_LIST, ApiServer
from mamba_kube.errors import ApiError
from mamba_operator.objects.errors import NotFound, ObjectRejected, of_status
from mamba_operator.objects.kinds import BY_NAME, Kind
from mamba_operator.objects.manifest import Manifest, metadata

PAGE_OBJECTS = 500
"""Largest number of objects in one page of a list."""
NO_VERSION = "1"
"""resourceVersion older than any object: an apply with it creates a new object and conflicts with an old
one."""


class KubeClient:
    """Reads and writes objects of the cluster, by kind. Tasks may share it."""

    counted: Callable[[str, str], None] = staticmethod(lambda _method, _plural: None)
    """Called with the method and the plural of the kind for each request."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """Return one object; None if there is none."""
        try:
            return await self._request("GET", kind, kind.path(namespace, name))
        except NotFound:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        selector: str = "",
        name: str = "",
        metadata_only: bool = False,
    ) -> list[Manifest]:
        """Return all objects of a kind that match `selector`, or only the one named `name`.

        Each has its kind filled in. With `metadata_only`, an object has nothing but its metadata.
        """
        pages = self.pages(kind, namespace, selector=selector, name=name, metadata_only=metadata_only)
        return [item async for page in pages for item in page]

    async def pages(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        selector: str = "",
        name: str = "",
        metadata_only: bool = False,
        page: int = PAGE_OBJECTS,
    ) -> AsyncIterator[builtins.list[Manifest]]:
        """Yield the objects that `list` returns, in lists of at most `page`.

        The other parameters are those of `list`.
        """
        query = {"limit": str(page), **({"labelSelector": selector} if selector else {})}
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        while True:
            answer = await self._request(
                "GET",
                kind,
                kind.path(namespace),
                query=query,
                accept=METADATA_LIST if metadata_only else JSON,
            )
            token = (answer.get("metadata") or {}).get("continue")
            yield [
                {**item, "apiVersion": kind.api_version, "kind": kind.kind}
                for item in answer.get("items") or ()
            ]
            if not token:
                return
            query = {**query, "continue": token}

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        """Write an object by server-side apply as the operator's field manager, which wins all conflicts.

        With `dry_run` nothing is written, and the object is returned as it would be stored.
        """
        kind = BY_NAME[manifest["kind"]]
        meta = manifest["metadata"]
        return await self._request(
            "PATCH",
            kind,
            kind.path(meta.get("namespace"), meta["name"], subresource),
            # Unknown fields are refused anyway. To warn of duplicate fields, which we never send, the API
            # server would parse the body a second time.
            query={
                "fieldManager": FIELD_MANAGER,
                "force": "true",
                "fieldValidation": "Ignore",
                **({"dryRun": "All"} if dry_run else {}),
            },
            body=manifest,
            content_type=APPLY_PATCH,
        )

    async def make(self, manifest: Manifest) -> Manifest:
        """Create a child. Raises Conflict if it exists, and the errors of `apply`.

        A create costs the API server two thirds of an apply, but it records the fields as owned by an Update.
        So `own` has to be called before the first `apply`; otherwise fields that the apply no longer contains
        would stay.
        """
        try:
            return await self.create(manifest, validation="Strict")
        except ObjectRejected as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            # The kind lacks a field: the answer to an apply names it in a form that `errors` can parse.
            meta = {**manifest["metadata"], "resourceVersion": NO_VERSION}
            return await self.apply({**manifest, "metadata": meta})

    async def own(self, observed: Manifest) -> None:
        """Convert the operator's ownership of fields from Update to Apply, if there are such fields.

        Raises Conflict if the object has changed since it was observed.
        """
        fields = owned_by_apply(observed)
        if fields is None:
            return
        kind, meta = BY_NAME[observed["kind"]], observed["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "managedFields": fields}}
        await self.merge(kind, meta.get("namespace"), meta["name"], patch)

    async def create(self, manifest: Manifest, *, validation: str = "Ignore") -> Manifest:
        """Create an object that must not exist yet. Raises Conflict if it exists.

        With `validation` Strict, the API server refuses fields that the kind does not have.
        """
        kind = BY_NAME[manifest["kind"]]
        return await self._request(
            "POST",
            kind,
            kind.path(manifest["metadata"].get("namespace")),
            query={"fieldManager": FIELD_MANAGER, "fieldValidation": validation},
            body=manifest,
        )

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. Raises Conflict if its resourceVersion is not the newest."""
        kind = BY_NAME[manifest["kind"]]
        meta = manifest["metadata"]
        return await self._request("PUT", kind, kind.path(meta.get("namespace"), meta["name"]), body=manifest)

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Mapping[str, Any]) -> Manifest:
        """Apply a JSON merge patch to one object."""
        return await self._request(
            "PATCH", kind, kind.path(namespace, name), body=patch, content_type=MERGE_PATCH
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly the object with the uid `uid` in the background; a missing object is no error."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", kind, kind.path(namespace, name), body=body)
        except NotFound:
            return

    async def serves(self, kind: Kind) -> bool:
        """Return whether the cluster serves the kind."""
        group = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            resources = (await self._request("GET", kind, group)).get("resources") or ()
        except NotFound:
            return False
        return any(resource.get("name") == kind.plural for resource in resources)

    async def _request(
        self,
        method: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        self.counted(method, kind.plural)
        try:
            return await self._server.request(
                method, path, query=query, body=body, content_type=content_type, accept=accept
            )
        except ApiError as error:
            raise of_status(error.status, str(error), error.retry_after) from error


# --- ownership of fields ---


def owned_by_apply(observed: Manifest) -> list[dict[str, Any]] | None:
    """Return managedFields in which the operator owns its fields by Apply instead of by Update.

    None = the operator has no Update entries. `kubectl apply --server-side` does the same to objects of a
    client-side apply.
    """
    entries = metadata(observed).get("managedFields") or []
    created = [entry for entry in entries if _is_ours(entry, "Update")]
    if not created:
        return None
    applied = next((entry for entry in entries if _is_ours(entry, "Apply")), None)
    fields: Any = {}
    for entry in (*created, *([applied] if applied else [])):
        fields = _union(fields, entry.get("fieldsV1") or {})
    ours = {**(applied or created[-1]), "operation": "Apply", "fieldsV1": fields}
    others = (entry for entry in entries if not (_is_ours(entry, "Update") or _is_ours(entry, "Apply")))
    return [ours, *others]


def _is_ours(entry: Mapping[str, Any], operation: str) -> bool:
    """Return whether the entry is the operator's; a subresource, such as the status, has its own entries."""
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (
        FIELD_MANAGER, operation, "",
    )  # fmt: skip


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two sets of fields, which are trees of names."""
    both = one.keys() & other.keys()
    return {**one, **other, **{name: _union(one[name], other[name]) for name in both}}
