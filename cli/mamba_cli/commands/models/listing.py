"""`mambaserve list`: the models in the model cache of this machine."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mamba_cli.output import OutputFormat, print_document

if TYPE_CHECKING:
    from mamba_server.model.checkpoint.cached_models import CachedModel


def command(
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """List the models in the cache (HF_HOME): what `pull`, `serve`, `run` and `up` have downloaded.

    Models that other programs have put there are listed, too, without a last use.
    """
    from rich.console import Console
    from rich.table import Table

    from mamba_server.model.checkpoint.cached_models import cached_models
    from mamba_server.model.checkpoint.source import hub_cache
    from mamba_settings.byte_size import binary_size

    cache, _ = hub_cache()
    models = cached_models(cache)
    if output is not OutputFormat.table:
        print_document([copy_document(model) for model in models], output)
        return
    if not models:
        Console(stderr=True).print(f"no model is in {cache}: fetch one with mambaserve pull OWNER/NAME")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("model", "size", "family", "precision", "last use", "state"):
        table.add_column(column, overflow="fold", justify="right" if column == "size" else "left")
    for model in models:
        # A name from a cache may hold what rich takes for markup.
        cells = (
            model.uri.removeprefix("hf://"), binary_size(model.size), model.family or "-",
            model.precision or "-", _local_time(model.used), _state(model),
        )  # fmt: skip
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    Console().print(table)


def copy_document(model: "CachedModel") -> dict[str, Any]:
    """Return the document of one copy, which `pull` prints, too."""
    used = None if model.used is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(model.used))
    return {**asdict(model), "used": used}


def _local_time(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _state(model: "CachedModel") -> str:
    """Return why the model cannot be served at once, in words; "" if it can."""
    if model.state == "incomplete":
        return "incomplete: pull continues"
    if model.state == "no weights":
        return "configuration only"
    return "complete" if model.is_served else "not served by this version"
