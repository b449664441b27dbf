"""`MigrationPlan`: the object that does what another server does, its plan, and what each argument became."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mamba_api.errors import ContractError
from mamba_api.v1alpha1.documents import load_documents
from mamba_cli.errors import InvalidInput
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.plan_view import plan_view
from mamba_cli.local.planning import PlanFlags, PlanOutcome, plan_pools
from mamba_cli.migration.command_line import LAUNCHERS, is_command, read_command
from mamba_cli.migration.manifests import read_manifests
from mamba_cli.migration.migrated import Migrated


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """An object for another server, with the MambaDeployment made from it, and its memory plan."""

    migrated: Migrated
    manifest: dict[str, Any]
    outcomes: tuple[PlanOutcome, ...]
    """Plans of the object, or of each of its pools."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `plan --output json` prints."""
        migrated = self.migrated
        return {
            "from": migrated.server,
            "mambaDeployment": self.manifest,
            "replaced": [{"argument": argument, "field": text} for argument, text in migrated.replaced],
            "leftOut": [{"argument": argument, "reason": text} for argument, text in migrated.left_out],
            "plans": [outcome.to_json() for outcome in self.outcomes],
        }

    def view(self, *, verbose: bool) -> RenderableType:
        """Return the text for the terminal; the manifest can be copied from it."""
        parts: list[RenderableType] = [plan_view(outcome, verbose=verbose) for outcome in self.outcomes]
        if self.migrated.left_out:
            table = Table(box=None, padding=(0, 2), title="left out", title_justify="left")
            table.add_column("argument", overflow="fold", style="yellow")
            table.add_column("because", overflow="fold")
            for argument, reason in self.migrated.left_out:
                table.add_row(argument, reason)
            parts += [table, Text()]
        text = yaml.safe_dump(self.manifest, sort_keys=False)
        parts += [Text("the MambaDeployment that does the same:", style="bold"), Text()]
        parts.append(Syntax(text, "yaml", theme="ansi_dark", background_color="default"))
        return Group(*parts)


def migration_plans(source: str, flags: PlanFlags) -> list[MigrationPlan] | None:
    """Return the plans of a command line or file of other servers; None = `source` is neither.

    The result is None, too, for a file that cannot be read or holds no such object. Raises `InvalidInput` for
    several words that are no known command, for a command without a model, and for values that no field
    takes, and `RunFailed`.
    """
    path = Path(source)
    if not _exists(path) and " " in source.strip():
        if not is_command(source):
            raise InvalidInput(
                f"{source[:60]!r} is no file, and no command of a server that is read here. Known are: "
                f"{LAUNCHERS}. Give the command from there on, in quotes"
            )
        # A relative path of a model means the current directory for a command, the file's own for a file.
        return [_planned(read_command(source), Path("-"), "the command", flags)]
    if path.suffix not in (".yaml", ".yml") or not _exists(path) or not path.is_file():
        return None
    try:
        objects = read_manifests(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None  # the reader of MambaDeployments reports it
    return [_planned(migrated, path, source, flags) for migrated in objects] or None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or that no file can have
        return False


def _planned(migrated: Migrated, place: Path, origin: str, flags: PlanFlags) -> MigrationPlan:
    """Return the plan of an object. `origin` is what it was read from, for messages."""
    manifest = migrated.manifest()
    text = yaml.safe_dump(manifest)
    try:
        [deployment] = load_documents(text, origin)
    except ContractError as error:
        raise InvalidInput(_with_arguments(str(error), migrated)) from error
    pools = plan_pools(LoadedDeployment(place, deployment), flags)
    return MigrationPlan(migrated, manifest, tuple(pool.outcome for pool in pools))


def _with_arguments(message: str, migrated: Migrated) -> str:
    """Return the message with the argument behind each line that is about its field."""
    lines = []
    for line in message.splitlines():
        arguments = [
            argument for argument, field in migrated.replaced if f": {field.partition(':')[0]}:" in line
        ]
        lines.append(f"{line} (from {arguments[-1]})" if arguments else line)
    return "\n".join(lines)


def titles_of_misfits(plans: Sequence[MigrationPlan]) -> list[str]:
    """Return the titles of the plans that do not fit."""
    return [outcome.title for plan in plans for outcome in plan.outcomes if outcome.misfit]
