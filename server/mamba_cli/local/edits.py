"""Takes over an edit of the file while it runs: what is live is applied, the rest is said."""

from collections.abc import Callable

import aiohttp

from mamba_api.v1alpha1 import MambaDeployment
from mamba_cli.errors import CliError
from mamba_cli.local.changes import changes_of
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.planning import PlanOutcome
from mamba_cli.local.readiness import put_strategy
from mamba_cli.local.unit import Unit

Reload = Callable[[], list[LoadedDeployment]]
Replan = Callable[[LoadedDeployment], PlanOutcome]


class Edits:
    """Remembers what was last taken over. `loaded` is all of the files, `units` what of it runs."""

    def __init__(
        self, units: list[Unit], loaded: list[LoadedDeployment], reload: Reload, replan: Replan
    ) -> None:
        self._units = {unit.name: unit for unit in units}
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
        taken = {name: each.deployment for name, each in new.items()}
        for change in changes_of(list(self._current.values()), list(taken.values())):
            unit, later = self._units.get(change.name), change.later
            if unit is None:
                # Planned only, or added after the start.
                later = change.live + change.later
            elif change.live:
                line, done = await self._apply(http, unit, new[change.name])
                lines.append(line)
                if not done:
                    # The next edit of the file tries again.
                    taken[change.name] = _with_live_fields_of(self._current[change.name], taken[change.name])
            if later:
                lines.append(f"{change.name}: {', '.join(later)}: takes effect at the next start")
        self._current = taken
        return lines or ["nothing in it concerns what runs"]

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
        strategy = outcome.plan.strategy
        interval = loaded.deployment.spec.state_cache.track_interval
        problem = await put_strategy(http, unit.admin_url, strategy, interval)
        if problem:
            return f"{unit.name}: strategy {strategy} was not taken over: {problem}", False
        # An engine that dies comes back with what it was told, not with what it was started with.
        self._units[unit.name] = unit.with_strategy(strategy, interval)
        return (
            f"{unit.name}: now runs {strategy} with a checkpoint every {interval} tokens, without a restart",
            True,
        )


def _with_live_fields_of(old: MambaDeployment, new: MambaDeployment) -> MambaDeployment:
    kept = {name: getattr(old.spec.state_cache, name) for name in ("strategy", "track_interval")}
    state_cache = new.spec.state_cache.model_copy(update=kept)
    return new.model_copy(update={"spec": new.spec.model_copy(update={"state_cache": state_cache})})
