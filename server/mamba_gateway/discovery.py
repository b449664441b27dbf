"""Discovery: watches the EndpointSlices of the Service `NAME-engine` and hands the targets on.

List, then watch from there; a 410 or a silent watch leads to a new list, an unreachable API server to waiting
with back-off. What was known stays in force meanwhile: losing the API server loses no engine.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import structlog
from kubernetes.aio import client, config

from mamba_gateway.endpoints import Target
from mamba_gateway.slices import targets

log = structlog.get_logger("mambaserve.gateway")

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SERVICE_LABEL = "kubernetes.io/service-name"
WATCH_SECONDS = 240
"""The server ends each watch after this; bookmarks keep the version fresh in between."""
LONGEST_WATCH = WATCH_SECONDS + 30
"""A server that is still silent then is not there any more."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
Sink = Callable[[Iterable[Target]], None]


class Stale(Exception):
    """The watch cannot go on from this version: list again."""


async def watch_slices(configuration: Any, namespace: str, service: str, sink: Sink, rng: Random) -> None:
    """Feed `sink` with the targets of one Service for ever; ends only by cancellation."""
    selector = f"{SERVICE_LABEL}={service}"
    backoff = FIRST_BACKOFF
    async with client.ApiClient(configuration) as api:
        slices = SliceWatch(client.DiscoveryV1Api(api), namespace, selector, sink)
        while True:
            try:
                version = await slices.list()
                backoff = FIRST_BACKOFF
                while True:
                    version = await slices.watch(version)
            except Stale as why:
                log.info("listing the endpoint slices again", why=str(why))
            except Exception as error:
                # Whatever it is: without this task the gateway would route by a picture of the past for ever.
                wait = backoff * rng.uniform(0.5, 1.0)
                log.warning("endpoint slices: trying again", error=_short(error), seconds=round(wait, 2))
                await asyncio.sleep(wait)
                backoff = min(LONGEST_BACKOFF, backoff * 2)


class SliceWatch:
    """The slices of one Service, kept up to date."""

    def __init__(self, api: Any, namespace: str, selector: str, sink: Sink) -> None:
        self._api, self._sink = api, sink
        self._where = {"namespace": namespace, "label_selector": selector}
        self._slices: dict[str, dict[str, Any]] = {}

    async def list(self) -> str:
        """Replace everything known; returns the version to watch from."""
        answer = await self._api.list_namespaced_endpoint_slice_without_preload_content(
            **self._where, _request_timeout=30
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(answer.close)
            body = msgspec.json.decode(await _checked(answer), type=dict[str, Any])
        self._slices = {item["metadata"]["name"]: item for item in body.get("items") or ()}
        self._sink(targets(self._slices.values()))
        return str(body["metadata"]["resourceVersion"])

    async def watch(self, version: str) -> str:
        """Follow until the server ends the watch; returns the version to go on from. Raises `Stale`."""
        answer = await self._api.list_namespaced_endpoint_slice_without_preload_content(
            **self._where,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS,
            # For all of the watch: this client takes one number only, whatever its documentation says.
            _request_timeout=LONGEST_WATCH,
        )
        try:
            if answer.status == 410:
                raise Stale("the version is gone")
            if answer.status != 200:
                await _checked(answer)
            buffer = b""
            # Lines may be longer than the reader's limit for one line: split here.
            async for chunk in answer.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    version = self._event(msgspec.json.decode(line, type=dict[str, Any]), version)
            return version
        finally:
            answer.close()

    def _event(self, event: dict[str, Any], version: str) -> str:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise Stale(f"{item.get('code')} {item.get('reason') or item.get('message')}")
        metadata = item["metadata"]
        if kind == "DELETED":
            self._slices.pop(metadata["name"], None)
        elif kind in ("ADDED", "MODIFIED"):
            self._slices[metadata["name"]] = item
        if kind != "BOOKMARK":
            self._sink(targets(self._slices.values()))
        return str(metadata.get("resourceVersion", version))


async def _checked(answer: aiohttp.ClientResponse) -> bytes:
    body = await answer.read()
    if answer.status != 200:
        raise client.ApiException(status=answer.status, reason=f"{answer.reason}: {body[:300]!r}")
    return body


async def configure(kubeconfig: str | None, namespace: str | None) -> tuple[Any, str]:
    """Client configuration and namespace: in-cluster if this is a pod, else from a kubeconfig.

    Raises ValueError when there is neither.
    """
    loader: Any = config
    configuration = client.Configuration()
    try:
        if kubeconfig is None and (own := _own_namespace()):
            loader.load_incluster_config(client_configuration=configuration)
            return configuration, namespace or own
        await loader.load_kube_config(
            config_file=kubeconfig, client_configuration=configuration, persist_config=False
        )
        _, active = loader.list_kube_config_contexts(config_file=kubeconfig)
    except (config.ConfigException, OSError) as error:
        raise ValueError(f"no usable Kubernetes configuration: {error}; give --kubeconfig FILE") from error
    return configuration, namespace or (active.get("context") or {}).get("namespace") or "default"


def _own_namespace() -> str | None:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else None


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
