"""The API server, as far as the gateway needs it: one request, with the client's authentication.

Goes below the client's typed methods: their modules take seconds of CPU to load (the one for pods 1.6), which
would stop every stream meanwhile. Used by `watch` and `wake`.
"""

from collections.abc import Mapping
from typing import Any

import aiohttp
from kubernetes.aio import client

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
# A watch that asks for the list's form gets an empty answer instead of an error.
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA_WATCH = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class ApiServer:
    """One connection pool; safe to share between tasks."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = 30.0,
    ) -> aiohttp.ClientResponse:
        """The open response; the caller closes it. `timeout` is for all of it, the body included.

        Raises `kubernetes.aio.client.ApiException`, `aiohttp.ClientError`, OSError or TimeoutError.
        """
        _, url, headers, sent, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            body=body,
            header_params={"Accept": accept, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        answer = await self._api.call_api(method, url, headers, sent, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


async def checked(response: aiohttp.ClientResponse) -> bytes:
    """The body. Raises `ApiException` for any status but 2xx."""
    body = await response.read()
    if not 200 <= response.status < 300:
        raise client.ApiException(status=response.status, reason=f"{response.reason}: {body[:300]!r}")
    return body


def short(error: Exception) -> str:
    """One line of at most 300 characters for a log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
