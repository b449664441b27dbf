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
    """Remembers what was last taken over."""

    def __init__(self, units: list[Unit], reload: Reload, replan: Replan) -> None:
        self._units = {unit.name: unit for unit in units}
        self._current: list[MambaDeployment] = [unit.loaded.deployment for unit in units]
        self._reload = reload
        self._replan = replan

    async def take_over(self, http: aiohttp.ClientSession) -> list[str]:
        """Lines that say what changed and what became of it. An invalid file changes nothing."""
        try:
            loaded = self._reload()
        except CliError as error:
            return [*str(error).splitlines(), "what runs stays as it is"]
        lines: list[str] = []
        new = {each.deployment.name: each for each in loaded}
        for change in changes_of(self._current, [each.deployment for each in loaded]):
            if change.live:
                lines.append(await self._apply(http, self._units[change.name], new[change.name]))
            if change.later:
                lines.append(f"{change.name}: {', '.join(change.later)}: takes effect at the next start")
        self._current = [each.deployment for each in loaded]
        return lines or ["nothing in it concerns what runs"]

    async def _apply(self, http: aiohttp.ClientSession, unit: Unit, loaded: LoadedDeployment) -> str:
        try:
            outcome = self._replan(loaded)
        except CliError as error:
            return f"{unit.name}: {error}"
        if outcome.plan is None:
            return f"{unit.name}: {outcome.misfit}"
        strategy = outcome.plan.strategy
        interval = loaded.deployment.spec.state_cache.track_interval
        problem = await put_strategy(http, unit.admin_url, strategy, interval)
        if problem:
            return f"{unit.name}: strategy {strategy} was not taken over: {problem}"
        return (
            f"{unit.name}: now runs {strategy} with a checkpoint every {interval} tokens, without a restart"
        )
