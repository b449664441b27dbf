"""`ModelSet`: the models that one gateway serves now, and the choice among them for each request.

Each model has its own parts, so that no request waits for engines, places or limits of another model. The
document of the models may change at any time: a model that joins is started first and listed then; one that
leaves takes no further requests, and its parts stay until its requests have ended. The proxy endpoint and the
gateway's own routes read the set.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from mamba_api.serving_status import EngineStatus
from mamba_gateway.admission.admission import Admission
from mamba_gateway.api.serving_status import EngineStatusClient, StatusUnavailable
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.errors import NoEndpoint
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.metrics.model_loads import ModelLoad
from mamba_gateway.models.model_parts import ModelParts, engine_key_of
from mamba_gateway.models.model_table import ModelTable
from mamba_gateway.models.models_file import ModelsFile, ModelsFileError
from mamba_gateway.relay.request_lane import LaneChoice
from mamba_gateway.routing.decision import RoutingRecord, available
from mamba_gateway.settings import GatewaySettings
from mamba_settings.models_document import ModelEntry, ModelsDocument

log = structlog.get_logger("mambaserve.gateway")

MODEL_HEADER = b"x-mambaserve-model"
"""Header of an answer by a model that the request did not name: the name of that model."""
FALLBACK_HEADER = b"x-mambaserve-fallback-for"
"""Header of an answer by a fallback: the name of the model that had no ready engine."""
Start = Callable[[ModelEntry, Callable[[], None]], AbstractAsyncContextManager[ModelParts]]
"""Starts the parts of a model; the function is to be called whenever its engines change."""
State = Literal["ready", "starting", "stopped"]


@dataclass(slots=True, eq=False)
class _RunningModel:
    entry: ModelEntry
    parts: ModelParts
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    @property
    def admission(self) -> Admission:
        return self.parts.lane.admission

    @property
    def ready(self) -> bool:
        """Whether an engine can take a request now."""
        return any(not endpoint.draining for endpoint in available(self.parts.pool.snapshot()))

    @property
    def state(self) -> State:
        if self.ready:
            return "ready"
        # A request that waits has asked for an engine, which is on its way before it is known.
        return "starting" if self.parts.pool.snapshot() or self.admission.admitted else "stopped"


class ModelSet:
    """The models that one gateway serves now, each with its parts.

    `front` admits every request before its model is known, and counts it until it ends. `start` starts the
    parts of a model.
    """

    def __init__(self, settings: GatewaySettings, front: Admission, start: Start) -> None:
        self._settings, self._front, self._start = settings, front, start
        self._arriving = front.max_queue
        """Number of requests that may be sending their bodies, beside those that their models admit."""
        self._table = ModelTable(ModelsDocument())
        self._models: dict[str, _RunningModel] = {}
        self._leaving: dict[_RunningModel, asyncio.Task[None]] = {}
        self._failures: dict[str, str] = {}
        """Reasons why models could not be started, by name."""
        self._changed = asyncio.Event()
        self._synced = self._warm = False
        self.metrics: GatewayMetrics | None = None
        """Metrics of the gateway, in which fallbacks are counted; assigned once they exist."""

    @property
    def table(self) -> ModelTable:
        """Return the names and rights of the present document."""
        return self._table

    async def apply(self, document: ModelsDocument, *, strict: bool = False) -> None:
        """Serve the models of `document` from now on. With `strict`, a model that cannot start raises."""
        table = ModelTable(document)
        entries = [entry for entry in table.entries if entry.parent is None]
        for entry in entries:
            present = self._models.get(entry.name)
            if present is not None and _same_parts(present.entry, entry):
                present.entry = entry
                continue
            try:
                model = await self._started(entry)
            except Exception as error:
                if strict:
                    raise
                self._failures[entry.name] = str(error) or type(error).__name__
                log.error("model not started", model=entry.name, reason=self._failures[entry.name])
                continue
            self._failures.pop(entry.name, None)
            self._models[entry.name] = model
            if present is not None:
                self._retire(present)
        names = {entry.name for entry in entries}
        for name in self._models.keys() - names:
            self._retire(self._models.pop(name))
        self._failures = {name: why for name, why in self._failures.items() if name in names}
        for entry in entries:
            if (running := self._models.get(entry.name)) is not None:
                running.parts.pool.expect_adapters(table.adapters_of(entry))
        self._table = table
        self._bound_front()
        self._notify()

    @property
    def incomplete(self) -> bool:
        """Return whether a model of the document could not be started, so that `apply` may be tried again."""
        return bool(self._failures)

    async def close(self) -> None:
        """End all models, those that leave included."""
        for task in self._leaving.values():
            task.cancel()
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        models = [*self._models.values(), *self._leaving]
        for model in models:
            model.stop.set()
        await asyncio.gather(*(model.task for model in models), return_exceptions=True)

    def choose(self, model: str | None, key: str) -> LaneChoice:
        """Return the lane for a request of `key` that names `model`. Raises an ApiError for the client."""
        entry = self._table.requested(model, key)
        chosen = self._serving(entry)
        if chosen is None:
            raise NoEndpoint(
                f"the gateway could not begin to serve '{entry.name}'; its log says why", retry_after=2
            )
        serving, headers = entry, list[tuple[bytes, bytes]]()
        if entry.fallbacks and not chosen.ready and (other := self._stand_in(entry, key)) is not None:
            chosen.parts.wake()
            serving, stand_in = other
            headers.append((FALLBACK_HEADER, _header_value(entry.name)))
            if self.metrics is not None:
                self.metrics.fallbacks.labels(entry.name, serving.name).inc()
            chosen = stand_in
        if serving.name != model:
            headers.append((MODEL_HEADER, _header_value(serving.name)))
        return LaneChoice(chosen.parts.lane, serving.name, serving.engine_name, headers)

    def cancel(self) -> None:
        """End streams that are aborted from now on with an error event."""
        for model in self._all():
            model.parts.lane.relay.cancelling = True

    def cards(self, key: str) -> list[dict[str, Any]]:
        """Return the entries of `/v1/models`: every name that the key may use, with the model's state."""
        return list(itertools.chain.from_iterable(map(self._cards, self._table.visible(key))))

    def card(self, name: str, key: str) -> dict[str, Any]:
        """Return the entry of one name. Raises ModelForbidden, ModelNotFound."""
        entry = self._table.named(name, key)
        return next(card for card in self._cards(entry) if card["id"] == name)

    def sees_all(self, key: str) -> bool:
        """Return whether the key may use every model."""
        return self._table.sees_all(key)

    @property
    def names_are_public(self) -> bool:
        """Return whether whoever reaches the gateway may know every model."""
        return self._table.public

    def serves(self, name: str) -> bool:
        """Return whether a model or adapter has this name, which bounds the labels of metrics."""
        return self._table.has(name)

    def decisions(self, limit: int) -> list[RoutingRecord]:
        """Return the last `limit` choices of engines of all models, the newest first."""
        records = (record for model in self._models.values() for record in model.parts.router.log.last(limit))
        return sorted(records, key=lambda record: record.at, reverse=True)[:limit]

    def snapshot(self) -> tuple[Endpoint, ...]:
        """Return the engines of all models."""
        return tuple(itertools.chain.from_iterable(model.parts.pool.snapshot() for model in self._all()))

    def reasons(self) -> Mapping[str, str]:
        """Return the reason for each engine that is not ready, by its name."""
        reasons: dict[str, str] = {}
        for model in self._models.values():
            reasons |= model.parts.pool.reasons()
        return reasons

    @property
    def synced(self) -> bool:
        """Whether the engines of all models were read once; a model that joins later changes nothing."""
        self._synced = self._synced or all(model.parts.pool.synced for model in self._models.values())
        return self._synced

    async def changed(self) -> None:
        """Wait for the next change of a model, of its engines or their reports."""
        await self._changed.wait()

    def missing(self) -> str:
        """Return what a gateway that has just started lacks to route well; "" = nothing."""
        if not self._warm:
            for name, model in self._models.items():
                if text := model.parts.warm_up.missing():
                    return f"{name}: {text}"
            self._warm = True
        return ""

    async def engine_status(self, url: str) -> EngineStatus:
        """Return the status that the engine at `url` reports. Raises StatusUnavailable."""
        for model in self._all():
            if any(endpoint.url == url for endpoint in model.parts.pool.snapshot()):
                key = engine_key_of(model.parts.lane.backend_keys)
                return await EngineStatusClient(model.parts.session, key).fetch(url)
        raise StatusUnavailable("its model has left")

    @property
    def in_flight(self) -> int:
        """Number of requests of all models that are being relayed."""
        return sum(model.admission.in_flight for model in self._all())

    @property
    def queued(self) -> int:
        """Number of admitted requests that are not being relayed, those that still arrive included."""
        return self._front.admitted - self.in_flight

    @property
    def admitted(self) -> int:
        """Number of admitted requests that have not ended."""
        return self._front.admitted

    @property
    def draining(self) -> bool:
        """Whether the gateway shuts down, so that no model takes further requests."""
        return self._front.draining

    def waiting(self) -> dict[str, int]:
        """Return the number of requests that wait for a permit of any model, by name of their key."""
        counts: dict[str, int] = {}
        for model in self._all():
            for key, count in model.admission.waiting().items():
                counts[key] = counts.get(key, 0) + count
        return counts

    def loads(self) -> Iterable[ModelLoad]:
        """Yield the load of each model, as metrics show it."""
        for name, model in self._models.items():
            endpoints = model.parts.pool.snapshot()
            ready = sum(endpoint.ready and not endpoint.draining for endpoint in endpoints)
            admission = model.admission
            yield ModelLoad(name, ready, admission.in_flight, admission.queued, model.parts.index)

    def _serving(self, entry: ModelEntry) -> _RunningModel | None:
        """Return the model whose engines serve `entry`: its parent, if `entry` is an adapter.

        The result is None if that model does not run.
        """
        return self._models.get(entry.parent or entry.name)

    def _stand_in(self, entry: ModelEntry, key: str) -> tuple[ModelEntry, _RunningModel] | None:
        """Return the first fallback whose engines are ready, with the model that has them.

        The result is None if no fallback is ready.
        """
        candidates = ((fallback, self._serving(fallback)) for fallback in self._table.fallbacks(entry, key))
        return next(((one, model) for one, model in candidates if model is not None and model.ready), None)

    def _cards(self, entry: ModelEntry) -> Iterable[dict[str, Any]]:
        model = self._serving(entry)
        listed = () if model is None else model.parts.pool.model_entries()
        plain = {"object": "model", "created": 0, "owned_by": "mambaserve"}
        card = next((card for card in listed if card["id"] == entry.engine_name), plain)
        if entry.parent is not None:
            card = {**card, "parent": entry.parent}
        card = {**card, "id": entry.name, "state": "stopped" if model is None else model.state}
        yield card
        for alias in entry.aliases:
            yield {**card, "id": alias, "alias_of": entry.name}

    def _all(self) -> Iterable[_RunningModel]:
        return itertools.chain(self._models.values(), self._leaving)

    def _bound_front(self) -> None:
        """Let as many requests wait for their model as all models admit together.

        A full model must not keep out requests for other models.
        """
        limits = (model.admission.max_in_flight + model.admission.max_queue for model in self._all())
        self._front.max_queue = self._arriving + sum(limits)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _started(self, entry: ModelEntry) -> _RunningModel:
        """Start a model in a task of its own, which also ends it. Raises the errors of its start."""
        stop, parts = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                async with self._start(entry, self._notify) as started:
                    parts.set_result(started)
                    await stop.wait()
            except Exception as error:
                if parts.done():
                    raise
                parts.set_exception(error)

        task = asyncio.create_task(run(), name=f"model {entry.name}")
        try:
            return _RunningModel(entry, await parts, stop, task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _retire(self, model: _RunningModel) -> None:
        """End a model once its requests have ended, or the longest life of a request has passed."""

        async def leave() -> None:
            settings = self._settings
            longest = settings.queue_timeout + settings.hold_timeout + settings.request_timeout
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest):
                    await model.admission.idle()
            model.stop.set()
            await asyncio.gather(model.task, return_exceptions=True)
            del self._leaving[model]
            self._bound_front()

        log.info("model leaves", model=model.entry.name, requests=model.admission.admitted)
        self._leaving[model] = asyncio.create_task(leave(), name=f"model {model.entry.name} leaves")


def _same_parts(one: ModelEntry, other: ModelEntry) -> bool:
    """Return whether two entries differ at most in names and fallbacks, for which no part is replaced."""
    return one.engine_name == other.engine_name and one.settings == other.settings


def _header_value(name: str) -> bytes:
    return name.encode("ascii", "backslashreplace")


@contextlib.asynccontextmanager
async def closing(models: ModelSet) -> AsyncIterator[ModelSet]:
    """Close the set at the end of the block."""
    try:
        yield models
    finally:
        await models.close()


CHECK_FILE_SECONDS = 1.0
"""Seconds between two checks of the file of models."""
CHECKS_PER_START = 10
"""Number of checks between two attempts to start a model that could not be started."""


async def follow(file: ModelsFile, models: ModelSet) -> None:
    """Apply each change of the file to the set, until the task is cancelled."""
    document = None
    for count in itertools.count(1):
        await asyncio.sleep(CHECK_FILE_SECONDS)
        try:
            if (new := file.changed()) is not None:
                document = new
                await models.apply(document)
                log.info("models changed", models=len(document.models))
            elif document is not None and models.incomplete and count % CHECKS_PER_START == 0:
                await models.apply(document)
        except ModelsFileError as error:
            log.error("models not changed", reason=str(error))
        except Exception:
            # A defect must not end the task: the next change of the file would be ignored silently.
            log.exception("models not changed")
