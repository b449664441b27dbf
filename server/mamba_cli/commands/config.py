"""`mambaserve config`: the effective settings of a command, and where each came from."""

from enum import StrEnum
from typing import Annotated, Any

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


class Output(StrEnum):
    """How the settings are shown."""

    table = "table"
    json = "json"
    yaml = "yaml"


def command(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[COMMAND [OPTIONS]…]", help="Command whose settings are shown.")
    ] = "serve",
    output: Annotated[
        Output, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = Output.table,
) -> None:
    """Show the settings a command would run with: mambaserve config serve --page-size 32"""
    import json
    import os

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mamba_cli.effective_settings import effective_settings
    from mamba_cli.main import app

    settings = effective_settings(app, name, context.args, os.environ)
    if output is not Output.table:
        document: Any = {
            each.option.removeprefix("--"): {
                "value": each.value,
                "source": each.source,
                "variable": each.variable,
            }
            for each in settings
        }
        if output is Output.json:
            typer.echo(json.dumps(document, indent=2))
            return
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
        return
    table = Table(title=f"mambaserve {name}", title_justify="left", box=None, padding=(0, 2))
    for column in ("option", "value", "from", "environment variable"):
        table.add_column(column, overflow="fold", no_wrap=column == "option")
    colour = {"flag": "green", "environment": "cyan", "file": "magenta", "default": "dim"}
    for each in settings:
        shown = "-" if each.value is None else str(each.value)
        table.add_row(each.option, Text(shown), each.source, each.variable, style=colour[each.source])
    Console().print(table)
