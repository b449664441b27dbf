"""One request to the API server, with the client's authentication, TLS and connections.

The client's typed methods are not used: their modules take seconds of CPU to load (the module for pods alone
1.6 s), and typed models are strict on reads. Bodies stay plain decoded JSON. Used by operator and gateway.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException

from mamba_kube.errors import MAX_MESSAGE, ApiError

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
NO_ANSWER = (aiohttp.ClientError, ApiException, ssl.SSLError, OSError)


class ApiServer:
    """A pool of connections to the API server that tasks may share; requests end after `timeout` seconds."""

    def __init__(self, client: ApiClient, *, timeout: float = 30.0) -> None:
        self._client = client
        self.timeout = timeout

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """Send a request and return the decoded answer, a JSON object.

        Raises:
            ApiError: any status but 2xx, an answer that is no JSON object, or none within `self.timeout`
                seconds.
        """
        request = f"{method} {path}"
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.open(
                    method, path, query=query, body=body, content_type=content_type, accept=accept,
                    timeout=self.timeout,
                )  # fmt: skip
                with contextlib.closing(response):
                    raw = await response.read()
        except TimeoutError:
            raise ApiError(f"{request}: no answer within {self.timeout:g} s") from None
        except NO_ANSWER as error:
            raise ApiError(f"{request}: {type(error).__name__}: {error}") from error
        if not 200 <= response.status < 300:
            raise _refusal(request, response, raw)
        return _decode(request, raw)

    async def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float,
    ) -> aiohttp.ClientResponse:
        """Send a request and return the open response, of any status; the caller closes it.

        `timeout` is the number of seconds for the whole exchange, including the body. Raises
        `aiohttp.ClientError`, `ApiException`, OSError or TimeoutError.
        """
        # The body is left out, because the client would search plain data for typed models.
        _, url, headers, _, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


async def refusal(method: str, path: str, response: aiohttp.ClientResponse) -> ApiError:
    """Return the error for an open response of a status other than 2xx."""
    return _refusal(f"{method} {path}", response, await response.read())


def _refusal(request: str, response: aiohttp.ClientResponse, raw: bytes) -> ApiError:
    return ApiError(
        f"{request}: {_message(raw)}",
        status=response.status,
        retry_after=_seconds(response.headers.get("Retry-After")),
    )


def _decode(request: str, raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except ValueError:
        # A proxy's error page: the API server itself always answers with JSON.
        raise ApiError(f"{request}: the answer is no JSON: {raw[:200]!r}") from None
    if not isinstance(data, dict):
        raise ApiError(f"{request}: the answer is no object: {raw[:200]!r}")
    return data


def _message(raw: bytes) -> str:
    """Return the server's message from a Status object or an error page."""
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
