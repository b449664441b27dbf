"""`AdapterUpdates`: gives running engines of one deployment their adapters, in tasks beside the passes.

`Reconciler` keeps one for each deployment whose adapters have changed, and reads the outcomes. An engine may
download an adapter for minutes, and no pass waits that long. Each attempt compares what the engine holds with
what it is to hold, so that it may be repeated at any time, by another operator as well.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from mamba_operator.children.engine_admin import AdminCall, call_admin
from mamba_operator.rollout.adapter_outcome import AdapterOutcome, AdapterUpdate

log = structlog.get_logger(__name__)

PASS_WAIT_SECONDS = 2.0
"""Time for which a pass waits for engines that answer soon."""
ADAPTER_RETRY_SECONDS = 15.0
"""Time after which an engine that does not serve its adapters is asked again."""
NO_PLACE = 409
"""HTTP status of an engine that has no free place for an adapter now."""


async def give_adapters(update: AdapterUpdate, token: str, call: AdminCall) -> AdapterOutcome:
    """Load and unload adapters of one engine until it serves those that `update` names; return the outcome.

    Adapters that are no longer named are unloaded last, so that all adapters that served before a failed load
    still serve. They are unloaded first only where no place is free.
    """
    engine = _Engine(update, token, call)
    status, answer = await engine.call("lora_adapters", None)
    if status != 200:
        return engine.failure(f"the operator could not read which adapters it serves: {answer}", 0)
    loaded = {str(one["name"]): str(one["path"]) for one in answer["adapters"]}
    surplus = [name for name in loaded if name not in update.adapters]
    for name, path in update.adapters.items():
        if loaded.get(name) == path:
            continue
        status, answer = await engine.load(name, path)
        waits = status == NO_PLACE and bool(surplus)
        if waits:
            if (failure := await engine.unload(surplus)) is not None:
                return failure
            status, answer = await engine.load(name, path)
        if status != 200:
            # A place is free as soon as the last request of an unloaded adapter has ended.
            return engine.failure(f"adapter {name}: {answer}", 0 if waits and status == NO_PLACE else status)
    return await engine.unload(surplus) or AdapterOutcome(update.settings)


class _Engine:
    """Calls the admin port of one engine to load and unload adapters."""

    def __init__(self, update: AdapterUpdate, token: str, call: AdminCall) -> None:
        self._update, self._token, self._call = update, token, call

    async def call(self, name: str, body: dict[str, str] | None) -> tuple[int, Any]:
        return await self._call(self._update.address, self._token, f"/admin/{name}", body)

    async def load(self, name: str, path: str) -> tuple[int, Any]:
        return await self.call("load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload(self, surplus: Sequence[str]) -> AdapterOutcome | None:
        """Unload adapters that are still loaded. Return the outcome of a failure; None = all are gone."""
        for name in surplus:
            status, answer = await self.call("unload_lora_adapter", {"lora_name": name})
            if status not in (200, 404):
                return self.failure(f"adapter {name} could not be unloaded: {answer}", status)
        return None

    def failure(self, message: str, status: int) -> AdapterOutcome:
        """Return the outcome of a call that was answered with `status`, or not at all (0)."""
        text = f"engine {self._update.pod}: {message}"
        return AdapterOutcome(self._update.settings, text, 400 <= status < 500)


@dataclass(slots=True)
class _Attempt:
    update: AdapterUpdate
    task: asyncio.Task[AdapterOutcome]
    ended_at: float = 0.0
    """Time of the end on the clock of the event loop, in seconds."""


class AdapterUpdates:
    """Gives engines of one deployment their adapters in tasks, and keeps the outcomes by run of an engine."""

    def __init__(self, call: AdminCall = call_admin) -> None:
        self._call = call
        self._attempts: dict[str, _Attempt] = {}

    def outcomes(self) -> dict[str, AdapterOutcome]:
        """Return the outcomes of the attempts that have ended, by run of an engine."""
        return {
            run: attempt.task.result()
            for run, attempt in self._attempts.items()
            if attempt.task.done() and not attempt.task.cancelled()
        }

    async def advance(self, updates: Sequence[AdapterUpdate], token: str) -> bool:
        """Start the attempts that are due, wait a moment for their ends, and return whether one has ended."""
        attempts = self._attempts
        for update in updates:
            attempt = attempts.get(update.run)
            if attempt is not None and attempt.update.settings != update.settings:
                attempt.task.cancel()
                attempt = None
            if attempt is None or self._is_due(attempt):
                attempts[update.run] = self._begin(update, token)
        running = {one.task for one in attempts.values() if not one.task.done()}
        ended, _ = await asyncio.wait(running, timeout=PASS_WAIT_SECONDS) if running else (set(), set())
        return bool(ended)

    def keep(self, runs: Sequence[str]) -> bool:
        """Cancel and forget all attempts but those of the engines with `runs`; return whether one is left."""
        for run in self._attempts.keys() - {*runs}:
            self._attempts.pop(run).task.cancel()
        return bool(self._attempts)

    def _is_due(self, attempt: _Attempt) -> bool:
        return attempt.task.done() and _now() - attempt.ended_at >= ADAPTER_RETRY_SECONDS

    def _begin(self, update: AdapterUpdate, token: str) -> _Attempt:
        attempt = _Attempt(update, asyncio.create_task(self._attempt(update, token)))
        attempt.task.add_done_callback(lambda _: setattr(attempt, "ended_at", _now()))
        return attempt

    async def _attempt(self, update: AdapterUpdate, token: str) -> AdapterOutcome:
        try:
            outcome = await give_adapters(update, token, self._call)
        except (KeyError, TypeError, AttributeError) as error:
            outcome = AdapterOutcome(update.settings, f"engine {update.pod}: unreadable answer: {error!r}")
        if outcome.message:
            log.warning("adapters_not_served", engine=update.pod, error=outcome.message)
        else:
            log.info("adapters_served", engine=update.pod, adapters=sorted(update.adapters))
        return outcome


def _now() -> float:
    return asyncio.get_running_loop().time()
