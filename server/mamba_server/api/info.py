"""The endpoints that only tell: probes, models, version, metrics."""

import importlib.metadata

from prometheus_client import CollectorRegistry
from starlette.responses import Response

from mamba_api.openai_responses import ModelCard, ModelList, Readiness
from mamba_edge.application import JsonResponse
from mamba_edge.errors import ModelNotFound, NotReady
from mamba_server.api.serving import Serving
from mamba_telemetry.registry import expose


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

    async def livez(self) -> dict[str, str]:
        """200 while this process's event loop turns."""
        return {"status": "alive"}

    async def readyz(self) -> Response:
        """200 when requests are welcome, else 503 with how far loading is."""
        state = readiness(self._serving)
        body = state.model_dump_json().encode()
        if state.status == "ready":
            return JsonResponse(body)
        return JsonResponse(body, 503, headers={"retry-after": str(int(NotReady.retry_after or 1))})

    async def models(self) -> ModelList:
        """The one served model."""
        return ModelList(object="list", data=[self._card()])

    async def model(self, name: str) -> ModelCard:
        """One model by name. Raises ModelNotFound."""
        if name != self._serving.model_name:
            raise ModelNotFound(f"the model '{name[:200]}' does not exist here", param="model")
        return self._card()

    async def version(self) -> dict[str, str]:
        """The installed version of mambaserve."""
        return {"version": importlib.metadata.version("mambaserve")}

    async def metrics(self) -> Response:
        """Prometheus text."""
        body, kind = expose(self._registry)
        return Response(body, headers={"content-type": kind})

    def _card(self) -> ModelCard:
        serving = self._serving
        ready = serving.engine.ready
        return ModelCard(
            id=serving.model_name,
            object="model",
            created=serving.created,
            owned_by="mambaserve",
            root=serving.settings.model,
            max_model_len=None if ready is None else ready.max_model_len,
        )
