"""The read-only endpoints: probes, models, tokenizer, version, metrics."""

import asyncio
import importlib.metadata

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from mamba_api.openai_responses import ModelCard, ModelList, Readiness, TransferStatus
from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import NotReady
from mamba_server.api.serving import Serving
from mamba_server.wire import LoadedAdapter
from mamba_telemetry.registry import expose
from mamba_text.text_archive import TextArchive


def readiness(serving: Serving) -> Readiness:
    """Return what `/readyz` reports. Draining hides all other states: it does not end by itself."""
    state = serving.engine.state
    if serving.drain.draining:
        reason = f"draining: {serving.drain.under_way} requests are finishing"
        return Readiness(status="draining", reason=reason)
    return Readiness(
        status=state.phase,
        reason=state.reason,
        stage=state.stage,
        done=state.done,
        total=state.total,
        transfer=_transfer(serving) if state.phase == "ready" else None,
        models_revision=serving.adapters.revision,
    )


def _transfer(serving: Serving) -> TransferStatus | None:
    """Return the endpoint for states that move between engines; None = there is none."""
    ready, stats = serving.engine.ready, serving.engine.stats
    if ready is None or not serving.moves_states:
        return None
    return TransferStatus(
        address=ready.transfer_address,
        incarnation=ready.incarnation,
        role=serving.settings.role,
        credits=0 if stats is None else int(stats.gauges.get("transfer_credits", 0)),
    )


class InfoEndpoints:
    """Answers the requests that only read, such as models and health, for one served model."""

    def __init__(self, serving: Serving, registry: CollectorRegistry) -> None:
        self._serving = serving
        self._registry = registry
        self._archive: TextArchive | None = None
        self._packing = asyncio.Lock()

    async def livez(self) -> dict[str, str]:
        """Answer 200 while the event loop of this process runs."""
        return {"status": "alive"}

    async def readyz(self) -> Response:
        """Answer 200 when requests are accepted, otherwise 503 with the progress of loading."""
        state = readiness(self._serving)
        body = state.model_dump_json().encode()
        if state.status == "ready":
            return JsonResponse(body)
        return JsonResponse(body, 503, headers={"retry-after": str(int(NotReady.retry_after or 1))})

    async def models(self) -> ModelList:
        """List the served model and its adapters."""
        adapters = [self._adapter_card(adapter) for adapter in self._serving.adapters.loaded]
        return ModelList(object="list", data=[self._card(), *adapters])

    async def model(self, name: str) -> ModelCard:
        """Return one model by name. Raises ModelNotFound."""
        if name == self._serving.model_name:
            return self._card()
        if (adapter := self._serving.adapters.get(name)) is None:
            raise self._serving.model_not_found(name)
        return self._adapter_card(adapter)

    async def tokenizer(self, request: Request) -> Response:
        """Return tokenizer and chat template as a zip file, for gateways; the ETag is their fingerprint.

        Raises NotReady before they are loaded.
        """
        directory = self._serving.text_files
        if directory is None:
            raise NotReady("the tokenizer is not loaded yet")
        async with self._packing:
            if self._archive is None:
                self._archive = await asyncio.to_thread(TextArchive.pack, directory)
        archive = self._archive
        headers = {"etag": f'"{archive.fingerprint}"'}
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(archive.data, media_type="application/zip", headers=headers)

    async def version(self) -> dict[str, str]:
        """Return the installed version of mambaserve."""
        return {"version": importlib.metadata.version("mambaserve")}

    async def metrics(self, request: Request) -> Response:
        """Return metrics as Prometheus text, or as OpenMetrics with exemplars if the client accepts it."""
        body, kind = expose(self._registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    def _adapter_card(self, adapter: LoadedAdapter) -> ModelCard:
        card = self._card()
        return card.model_copy(
            update={
                "id": adapter.name, "root": adapter.path, "parent": card.id,
                "fingerprint": adapter.fingerprint,
            }
        )  # fmt: skip

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
