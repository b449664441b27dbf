"""`mambaserve ps`: the deployments that `up` serves on this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from mamba_cli.output import OutputFormat, print_document


def command(
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """List what `mambaserve up` serves on this machine for this user."""
    from rich.console import Console
    from rich.table import Table

    from mamba_cli.local.running import running

    deployments = running()
    if output is not OutputFormat.table:
        print_document([asdict(deployment) for deployment in deployments], output)
        return
    if not deployments:
        Console(stderr=True).print("nothing runs: start a model with mambaserve up FILE or run MODEL")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "model", "url", "pid", "file"):
        table.add_column(column, overflow="fold")
    for each in deployments:
        table.add_row(each.name, each.model, each.url, str(each.pid), each.file or "standard input")
    Console().print(table)
