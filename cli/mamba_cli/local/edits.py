"""Edits of the file while it runs: that there is one, what it changes, and what becomes of it.

What an engine can take over while it serves is sent to it and goes into the settings it would be started with
again; the rest is said. Compared is with what runs, so that an edit that is taken back is none. Called by the
session.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import CliError
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.loading.readiness import put_strategy
from mamba_cli.local.planning import PlanOutcome
from mamba_cli.local.unit import Unit
from mamba_settings.live_settings import LIVE

Reload = Callable[[], list[LoadedDeployment]]
Replan = Callable[[LoadedDeployment], PlanOutcome]
_LIVE = tuple(f"spec.stateCache.{field}" for field in LIVE.values())
"""Fields that the running engine can take over."""
_NEXT = "takes effect at the next start"


class FileEdits:
    """Knows what runs and what the file said last. `loaded` is all of the files, `units` what of it runs."""

    def __init__(
        self, units: list[Unit], loaded: list[LoadedDeployment], reload: Reload, replan: Replan
    ) -> None:
        self._units = {unit.name: unit for unit in units}
        self._running = {unit.name: unit.loaded.deployment for unit in units}
        self._current = {each.deployment.name: each.deployment for each in loaded}
        self._reload = reload
        self._replan = replan

    async def take_over(self, http: aiohttp.ClientSession) -> tuple[list[str], list[Unit]]:
        """Lines that say what changed and what became of it, and the units as they start from now on.

        An invalid file changes nothing.
        """
        lines = await self._take_over(http)
        return lines, list(self._units.values())

    async def _take_over(self, http: aiohttp.ClientSession) -> list[str]:
        try:
            loaded = self._reload()
        except CliError as error:
            return [*str(error).splitlines(), "what runs stays as it is"]
        lines: list[str] = []
        new = {each.deployment.name: each for each in loaded}
        for name in dict.fromkeys((*self._current, *new)):
            lines += await self._one(http, name, self._current.get(name), new.get(name))
        self._current = {name: each.deployment for name, each in new.items()}
        return lines or ["nothing in it concerns what runs"]

    async def _one(
        self,
        http: aiohttp.ClientSession,
        name: str,
        before: MambaDeployment | None,
        now: LoadedDeployment | None,
    ) -> list[str]:
        """What to say of the object `name`, which the file had as `before` and has as `now`."""
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
            # One that was refused is tried again with each edit.
            line, done = await self._apply(http, self._units[name], now)
            lines.append(line)
            if done:
                self._running[name] = _with_live_fields_of(now.deployment, runs)
        said = differs if before is None else different(before, now.deployment)
        if later := [field for field in differs if field in said and field not in _LIVE]:
            lines.append(f"{name}: {', '.join(later)}: {_NEXT}")
        if back := [field for field in said if field not in differs and field not in _LIVE]:
            lines.append(f"{name}: {', '.join(back)}: as it runs again")
        if before is None and not differs:
            lines.append(f"{name}: the object is back, as it runs")
        return lines

    async def _apply(
        self, http: aiohttp.ClientSession, unit: Unit, loaded: LoadedDeployment
    ) -> tuple[str, bool]:
        """What to say, and whether the engine took it over."""
        try:
            outcome = self._replan(loaded)
        except CliError as error:
            return f"{unit.name}: {error}", False
        if outcome.plan is None:
            return f"{unit.name}: {outcome.misfit}", False
        strategy, cache = outcome.plan.strategy, loaded.deployment.spec.state_cache
        wanted = {name: getattr(cache, name) for name in LIVE} | {"strategy": strategy}
        body = {LIVE[name]: value for name, value in wanted.items()}
        problem = await put_strategy(http, unit.admin_url, body)
        if problem:
            return f"{unit.name}: strategy {strategy} was not taken over: {problem}", False
        # An engine that dies comes back with what it was told, not with what it was started with.
        self._units[unit.name] = unit.with_settings(unit.settings.model_copy(update=wanted))
        interval, most = cache.track_interval, cache.max_checkpoints_per_path
        line = (
            f"{unit.name}: now runs {strategy} with a checkpoint every {interval} tokens, {most} to a path, "
            f"and eviction by {cache.eviction}, without a restart"
        )
        return line, True


def _with_live_fields_of(old: MambaDeployment, new: MambaDeployment) -> MambaDeployment:
    kept = {name: getattr(old.spec.state_cache, name) for name in LIVE}
    state_cache = new.spec.state_cache.model_copy(update=kept)
    return new.model_copy(update={"spec": new.spec.model_copy(update={"state_cache": state_cache})})


def different(old: MambaDeployment, new: MambaDeployment) -> tuple[str, ...]:
    """Paths of the fields whose values differ."""
    return tuple(_different(old.manifest(), new.manifest(), ""))


def _different(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    fields: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        here = f"{path}.{key}" if path else key
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            fields += _different(left, right, here)
        elif left != right:
            fields.append(here)
    return fields


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What a file looked like. `digest` empty = it cannot be read."""

    path: Path
    digest: str

    @classmethod
    def read(cls, path: Path) -> "FileStamp":
        """Look at the file now. The content counts: editors touch and rename without changing it."""
        try:
            return cls(path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            return cls(path, "")


def changed(before: list[FileStamp], after: list[FileStamp]) -> list[Path]:
    """Files whose content differs and can be read: one that is just being replaced is no change yet."""
    known = {stamp.path: stamp.digest for stamp in before}
    return [stamp.path for stamp in after if stamp.digest and stamp.digest != known.get(stamp.path)]


def settled(before: list[FileStamp], after: list[FileStamp]) -> list[FileStamp]:
    """The stamps to compare with next time: an unreadable file keeps its last known content."""
    known = {stamp.path: stamp for stamp in before}
    return [stamp if stamp.digest else known.get(stamp.path, stamp) for stamp in after]


class MissingFiles:
    """Which files are gone: said when a second look finds none either, since editors replace files."""

    def __init__(self) -> None:
        self._missed_reads: dict[Path, int] = {}

    def lines(self, stamps: list[FileStamp]) -> list[str]:
        """What to say after this look."""
        lines = []
        for stamp in stamps:
            looks = self._missed_reads.get(stamp.path, 0)
            self._missed_reads[stamp.path] = 0 if stamp.digest else looks + 1
            if not stamp.digest and looks == 1:
                lines.append(f"{stamp.path} cannot be read any more: what runs stays as it is")
            if stamp.digest and looks > 1:
                lines.append(f"{stamp.path} is back")
        return lines
