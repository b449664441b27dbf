"""The endpoints that only tell: probes, models, version, metrics, the OpenAPI document."""

import importlib.metadata
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from mamba_api.openai_answers import ModelCard, ModelList, Readiness
from mamba_server.api.answers import encode
from mamba_server.api.errors import ModelNotFound, NotReady
from mamba_server.api.openapi import document
from mamba_server.api.serving import Serving
from mamba_telemetry.registry import expose


def version() -> str:
    """The installed version of the distribution."""
    return importlib.metadata.version("mambaserve")


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def readiness(serving: Serving) -> Readiness:
    """What `/readyz` says. Draining hides everything else: it will not become ready again by itself."""
    state = serving.engine.state
    if serving.drain.draining:
        reason = f"draining: {serving.drain.under_way} requests are finishing"
        return Readiness(status="draining", reason=reason)
    return Readiness(
        status=state.phase, reason=state.reason, stage=state.stage, done=state.done, total=state.total
    )


class Info:
    """Handlers over one served model."""

    def __init__(self, serving: Serving, registry: CollectorRegistry) -> None:
        self._serving = serving
        self._registry = registry
        self._document = encode(document(version()))

    async def livez(self, _: Request) -> Response:
        """200 while this process's event loop turns."""
        return _json(b'{"status":"alive"}')

    async def readyz(self, _: Request) -> Response:
        """200 when requests are welcome, else 503 with how far loading is."""
        state = readiness(self._serving)
        if state.status == "ready":
            return _json(state.model_dump_json().encode())
        retry = str(int(NotReady.retry_after or 1))
        return _json(state.model_dump_json().encode(), 503, {"retry-after": retry})

    async def models(self, _: Request) -> Response:
        """The one served model."""
        return _json(ModelList(object="list", data=[self._card()]).model_dump_json().encode())

    async def model(self, request: Request) -> Response:
        """One model by name. Raises ModelNotFound."""
        name = request.path_params["name"]
        if name != self._serving.model_name:
            raise ModelNotFound(f"the model '{name[:200]}' does not exist here", param="model")
        return _json(self._card().model_dump_json().encode())

    async def version(self, _: Request) -> Response:
        """The version of mambaserve."""
        return _json(encode({"version": version()}))

    async def metrics(self, _: Request) -> Response:
        """Prometheus text."""
        body, kind = expose(self._registry)
        return Response(body, headers={"content-type": kind})

    async def openapi(self, _: Request) -> Response:
        """The OpenAPI document."""
        return _json(self._document)

    def _card(self) -> ModelCard:
        serving = self._serving
        ready: Any = serving.engine.ready
        return ModelCard(
            id=serving.model_name,
            object="model",
            created=serving.created,
            owned_by="mambaserve",
            root=serving.settings.model,
            max_model_len=None if ready is None else ready.max_model_len,
        )
