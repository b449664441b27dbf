"""`mambaserve config`: the effective settings of a command and the source of each value."""

from typing import Annotated, Any

import typer

from mamba_cli.output import OutputFormat, print_document

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[COMMAND [OPTIONS]…]", help="Command whose settings to show.")
    ] = "serve",
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """Show the settings that a command would run with.

    Example: mambaserve config serve --page-size 32
    """
    import os

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mamba_cli.effective_settings import effective_settings
    from mamba_cli.main import application

    settings = effective_settings(application(), name, context.args, os.environ)
    if output is not OutputFormat.table:
        document: Any = {
            setting.option.removeprefix("--"): {
                "value": setting.value,
                "source": setting.source,
                "variable": setting.variable,
            }
            for setting in settings
        }
        print_document(document, output)
        return
    console = Console()
    colour = {"flag": "green", "environment": "cyan", "file": "magenta", "default": "dim"}
    table = Table(title=f"mambaserve {name}", title_justify="left", box=None, padding=(0, 2))
    for column in ("option", "value", "from", "environment variable"):
        table.add_column(column, overflow="fold", no_wrap=column != "value", min_width=10)
    rows = [
        (
            setting.option,
            "-" if setting.value is None else str(setting.value),
            setting.source,
            setting.variable,
        )
        for setting in settings
    ]
    for option, value, source, variable in rows:
        table.add_row(option, Text(value), source, variable, style=colour[source])
    if table.__rich_measure__(console, console.options).minimum <= console.width:
        console.print(table)
        return
    # On a narrow terminal each setting has two lines, because users copy names, which must not be cut.
    for option, value, source, variable in rows:
        console.print(
            Text(f"{option}  {value}  ({source})\n    {variable}"), style=colour[source], soft_wrap=True
        )
