"""The API server as the operator uses it: get, list, server-side apply, create, delete, status.

A thin layer over `kubernetes.aio`, which owns authentication, TLS and connections. Bodies stay plain data:
the typed models are strict on reads and cost four times the CPU. Every failure is one of `errors`.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException

from mamba_api.names import FIELD_MANAGER
from mamba_operator.errors import NotFound, Unreachable, of_status
from mamba_operator.kinds import BY_NAME, Kind
from mamba_operator.manifest import Manifest

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
PAGE = 500
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MAX_MESSAGE = 1000


class KubeClient:
    """One connection pool; safe to share between tasks. Requests end after `timeout` seconds."""

    def __init__(self, api: ApiClient, *, timeout: float = 30.0) -> None:
        self._api = api
        self._timeout = timeout

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, or None when there is none of that name."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", metadata_only: bool = False
    ) -> list[Manifest]:
        """All objects of a kind, page by page; items carry their kind as single objects do."""
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        items: list[Manifest] = []
        while True:
            answer = await self._request(
                "GET", kind.path(namespace), query=query, accept=METADATA_ONLY if metadata_only else JSON
            )
            for item in answer.get("items") or ():
                items.append({**item, "apiVersion": kind.api_version, "kind": kind.kind})  # noqa: PERF401
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return items
            query = {**query, "continue": token}

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply as the operator's one field manager; it wins conflicts, the child being ours."""
        kind = BY_NAME[manifest["kind"]]
        meta = manifest["metadata"]
        return await self._request(
            "PATCH",
            kind.path(meta.get("namespace"), meta["name"], subresource),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=manifest,
            content_type=APPLY,
        )

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object that must not exist yet. Raises Conflict when it does."""
        kind = BY_NAME[manifest["kind"]]
        return await self._request(
            "POST",
            kind.path(manifest["metadata"].get("namespace")),
            query={"fieldManager": FIELD_MANAGER},
            body=manifest,
        )

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. Raises Conflict when its resourceVersion is not the newest."""
        kind = BY_NAME[manifest["kind"]]
        meta = manifest["metadata"]
        return await self._request("PUT", kind.path(meta.get("namespace"), meta["name"]), body=manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """JSON merge patch of one object."""
        return await self._request("PATCH", kind.path(namespace, name), body=patch, content_type=MERGE)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly the object of that uid in the background; one that is gone already is no error."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", kind.path(namespace, name), body=body)
        except NotFound:
            return

    async def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows the kind."""
        group = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            resources = (await self._request("GET", group)).get("resources") or ()
        except NotFound:
            return False
        return any(resource.get("name") == kind.plural for resource in resources)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(self._timeout):
                _, url, headers, sent, _ = await self._api.param_serialize(
                    method, path, query_params=list((query or {}).items()), body=body,
                    header_params={"Accept": accept, "Content-Type": content_type},
                    auth_settings=["BearerToken"],
                )  # fmt: skip
                response = await self._api.call_api(
                    method, url, headers, sent, _request_timeout=self._timeout
                )
                raw: bytes = await response.read()  # type: ignore[no-untyped-call]
        except TimeoutError:
            raise Unreachable(f"{what}: no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, ApiException, ssl.SSLError, OSError) as error:
            raise Unreachable(f"{what}: {type(error).__name__}: {error}") from error
        if response.status >= 300:
            raise of_status(
                response.status,
                f"{what}: {_message(raw)}",
                _seconds(response.headers.get("Retry-After")),
            )
        return _decoded(raw, what)


def _decoded(raw: bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except ValueError:
        # A proxy's error page: the API server itself always answers with JSON.
        raise Unreachable(f"{what}: the answer is no JSON: {raw[:200]!r}") from None
    if not isinstance(data, dict):
        raise Unreachable(f"{what}: the answer is no object: {raw[:200]!r}")
    return data


def _message(raw: bytes) -> str:
    """The server's own words, out of a Status object or an error page."""
    try:
        data = json.loads(raw)
        text = str(data["message"]) if isinstance(data, dict) and "message" in data else raw.decode()
    except ValueError:
        text = raw.decode(errors="replace")
    return text[:MAX_MESSAGE]


def _seconds(header: str | None) -> float | None:
    try:
        return max(float(header), 0.0) if header else None
    except ValueError:
        return None
