"""Edits of the files of `up` while it runs: their detection, and their effect.

Fields that a serving engine can change are sent to it and stored in the settings for its next start; other
changes are reported. The comparison is with the running deployment, so a reverted edit is no change. Called
by the session.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from mamba_api.v1alpha1 import MambaDeployment, Pool
from mamba_cli.errors import CliError
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.loading.readiness import put_strategy
from mamba_cli.local.planning import PlannedPool
from mamba_cli.local.unit import LocalEngine, Unit
from mamba_settings.live_settings import LIVE

Reload = Callable[[], list[LoadedDeployment]]
Replan = Callable[[LoadedDeployment], list[PlannedPool]]
_CACHES = (
    "spec.stateCache",
    "spec.disaggregation.prefill.stateCache",
    "spec.disaggregation.decode.stateCache",
)
_LIVE = tuple(f"{cache}.{field}" for cache in _CACHES for field in LIVE.values())
"""Fields that a running engine can change."""
_NEXT = "takes effect at the next start"


class FileEdits:
    """The running deployments and the last contents of their files; applies the differences.

    `loaded` are all deployments of the files, `units` the running ones.
    """

    def __init__(
        self, units: list[Unit], loaded: list[LoadedDeployment], reload: Reload, replan: Replan
    ) -> None:
        self._units = {unit.name: unit for unit in units}
        self._running = {unit.name: unit.loaded.deployment for unit in units}
        self._current = {document.deployment.name: document.deployment for document in loaded}
        self._reload = reload
        self._replan = replan

    async def take_over(self, http: aiohttp.ClientSession) -> tuple[list[str], list[Unit]]:
        """Apply the edits; return lines that report them, and the units with the settings of the next start.

        An invalid file changes nothing.
        """
        lines = await self._take_over(http)
        return lines, list(self._units.values())

    async def _take_over(self, http: aiohttp.ClientSession) -> list[str]:
        try:
            loaded = self._reload()
        except CliError as error:
            return [*str(error).splitlines(), "nothing that runs is changed"]
        lines: list[str] = []
        new = {document.deployment.name: document for document in loaded}
        for name in dict.fromkeys((*self._current, *new)):
            lines += await self._apply_object(http, name, self._current.get(name), new.get(name))
        self._current = {name: document.deployment for name, document in new.items()}
        return lines or ["nothing that runs is affected"]

    async def _apply_object(
        self,
        http: aiohttp.ClientSession,
        name: str,
        before: MambaDeployment | None,
        now: LoadedDeployment | None,
    ) -> list[str]:
        """Apply the change of the object `name` from `before` to `now`; return lines that report it."""
        runs = self._running.get(name)
        if now is None:
            return [f"{name}: the object was removed: {_NEXT if runs else 'it does not run'}"]
        if runs is None:
            if before is None:
                return [f"{name}: the object was added: {_NEXT}"]
            fields = different(before, now.deployment)
            return [f"{name}: {', '.join(fields)}: {_NEXT}"] if fields else []
        lines = []
        differs = different(runs, now.deployment)
        if any(field in _LIVE for field in differs):
            # A change that the engine refused is tried again with each edit.
            live_lines, applied = await self._apply_live_fields(http, self._units[name], now)
            lines += live_lines
            if applied:
                self._running[name] = _with_live_fields_of(now.deployment, runs)
        return [*lines, *_lines_on_others(name, before, now.deployment, differs)]

    async def _apply_live_fields(
        self, http: aiohttp.ClientSession, unit: Unit, loaded: LoadedDeployment
    ) -> tuple[list[str], bool]:
        """Send the live fields to the engines; return lines on them, and whether all engines accepted."""
        try:
            pools = {pool.role: pool for pool in self._replan(loaded)}
        except CliError as error:
            return [f"{unit.name}: {error}"], False
        lines, applied = [], True
        for engine in unit.engines:
            # Without a pool of that role, the pools themselves were edited, which takes effect later.
            pool = pools.get(engine.role)
            if pool is not None and (engine.role == "unified" or _differs(engine, pool)):
                line, accepted = await self._apply_to_engine(http, unit.name, engine, pool)
                lines.append(line)
                applied = applied and accepted
        return lines, applied

    async def _apply_to_engine(
        self, http: aiohttp.ClientSession, unit: str, engine: LocalEngine, pool: PlannedPool
    ) -> tuple[str, bool]:
        title = unit if engine.role == "unified" else engine.name
        if pool.outcome.plan is None:
            return f"{title}: {pool.outcome.misfit}", False
        strategy, cache = pool.outcome.plan.strategy, pool.loaded.deployment.spec.state_cache
        settings = {name: getattr(cache, name) for name in LIVE} | {"strategy": strategy}
        body = {LIVE[name]: value for name, value in settings.items()}
        problem = await put_strategy(http, engine.admin_url, body)
        if problem:
            return f"{title}: the engine did not switch to strategy {strategy}: {problem}", False
        # After a crash the engine starts with these settings, not with those of its first start.
        updated = engine.settings.model_copy(update=settings)
        self._units[unit] = self._units[unit].with_settings(engine.name, updated)
        interval, most = cache.track_interval, cache.max_checkpoints_per_path
        line = (
            f"{title}: now runs {strategy} with a checkpoint every {interval} tokens, {most} per path, "
            f"and eviction by {cache.eviction}, without a restart"
        )
        return line, True


def _differs(engine: LocalEngine, pool: PlannedPool) -> bool:
    """Return whether an engine of a pool runs with other live settings than its pool has now."""
    cache, plan = pool.loaded.deployment.spec.state_cache, pool.outcome.plan
    strategy = cache.strategy if plan is None else plan.strategy
    now = {name: getattr(cache, name) for name in LIVE} | {"strategy": strategy}
    return any(getattr(engine.settings, name) != value for name, value in now.items())


def _lines_on_others(
    name: str, before: MambaDeployment | None, now: MambaDeployment, differs: tuple[str, ...]
) -> list[str]:
    """Return lines on edits of fields that the engine cannot change while it serves.

    The lines also name fields whose edit was taken back, and an object that is back unchanged. `differs` are
    the fields of `now` that differ from the running deployment; `before` is the object before the edit, None
    if it was missing.
    """
    lines = []
    edited = differs if before is None else different(before, now)
    if later := [field for field in differs if field in edited and field not in _LIVE]:
        lines.append(f"{name}: {', '.join(later)}: {_NEXT}")
    if back := [field for field in edited if field not in differs and field not in _LIVE]:
        lines.append(f"{name}: {', '.join(back)}: again as running")
    if before is None and not differs:
        lines.append(f"{name}: the object is back and equals the running one")
    return lines


def _with_live_fields_of(old: MambaDeployment, new: MambaDeployment) -> MambaDeployment:
    """Return `new` with the live fields of `old`, also in each pool."""
    spec, pools, old_pools = new.spec, new.spec.disaggregation, old.spec.disaggregation
    kept = {name: getattr(old.spec.state_cache, name) for name in LIVE}
    parts: dict[str, Any] = {"state_cache": spec.state_cache.model_copy(update=kept)}
    if pools is not None and old_pools is not None:
        parts["disaggregation"] = pools.model_copy(
            update={
                "prefill": _pool_with_live_fields(old_pools.prefill, pools.prefill),
                "decode": _pool_with_live_fields(old_pools.decode, pools.decode),
            }
        )
    return new.model_copy(update={"spec": spec.model_copy(update=parts)})


def _pool_with_live_fields(old: Pool, new: Pool) -> Pool:
    if old.state_cache is None or new.state_cache is None:
        return new
    kept = {name: getattr(old.state_cache, name) for name in LIVE}
    return new.model_copy(update={"state_cache": new.state_cache.model_copy(update=kept)})


def different(old: MambaDeployment, new: MambaDeployment) -> tuple[str, ...]:
    """Return the paths of the fields whose values differ."""
    return tuple(_different(old.manifest(), new.manifest(), ""))


def _different(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    fields: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        field = f"{path}.{key}" if path else key
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            fields += _different(left, right, field)
        elif left != right:
            fields.append(field)
    return fields


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The content of a file at one time; `digest` is empty if the file could not be read."""

    path: Path
    digest: str

    @classmethod
    def read(cls, path: Path) -> "FileStamp":
        """Read the file now. Only its content counts: editors touch files without changing them."""
        try:
            return cls(path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            return cls(path, "")


def changed(before: list[FileStamp], after: list[FileStamp]) -> list[Path]:
    """Return the files whose content differs, without unreadable ones, which an editor may be saving."""
    digests = {stamp.path: stamp.digest for stamp in before}
    return [stamp.path for stamp in after if stamp.digest and stamp.digest != digests.get(stamp.path)]


def settled(before: list[FileStamp], after: list[FileStamp]) -> list[FileStamp]:
    """Return the stamps for the next comparison: an unreadable file keeps its last known content."""
    previous = {stamp.path: stamp for stamp in before}
    return [stamp if stamp.digest else previous.get(stamp.path, stamp) for stamp in after]


class MissingFiles:
    """Number of times in a row that each file could not be read.

    A file is reported as gone at the second time: an editor may be replacing it at the first.
    """

    def __init__(self) -> None:
        self._missed_reads: dict[Path, int] = {}

    def lines(self, stamps: list[FileStamp]) -> list[str]:
        """Return lines on files that have gone or come back, given the stamps of the latest read."""
        lines = []
        for stamp in stamps:
            missed = self._missed_reads.get(stamp.path, 0)
            self._missed_reads[stamp.path] = 0 if stamp.digest else missed + 1
            if not stamp.digest and missed == 1:
                lines.append(f"{stamp.path} can no longer be read: nothing that runs is changed")
            if stamp.digest and missed > 1:
                lines.append(f"{stamp.path} is back")
        return lines
