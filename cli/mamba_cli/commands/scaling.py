"""`mambaserve scaling replay`: recorded decisions of the operator's autoscaler, made again and explained."""

from typing import Annotated

import typer

from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels

command = typer.Typer(name="scaling", help="Decisions of the operator's autoscaler.", no_args_is_help=True)


@command.command("replay", cls=CommandWithPanels)
def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_OBJECT",
            envvar="MAMBASERVE_SCALING_SOURCE",
            help="Recorded decisions, one JSON object a line; or MambaDeployments as `kubectl get -o yaml` "
            "prints them; or, where there is no such file, the name of one in the cluster.",
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", envvar="MAMBASERVE_SCALING_NAMESPACE", help="Of the object."),
    ] = "default",
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_KUBECONFIG",
            help="A kubeconfig file. Without it: the pod's account, then KUBECONFIG.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, envvar="MAMBASERVE_SCALING_TIMEOUT", help="Seconds to wait for the cluster."),
    ] = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """Make recorded decisions again from what they were made from, and say why. Exit code 1: one differs."""
    import asyncio
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mamba_cli.scaling.replay import replayed_file, replayed_object
    from mamba_cli.status.deployment_status import deployments_of

    path = Path(source)
    if path.exists():
        found = replayed_file(path)
    elif "/" in source or "." in source:
        raise InvalidInput(f"{source}: no such file; of an object in the cluster give its name and -n")
    else:
        try:
            objects = asyncio.run(deployments_of(namespace, source, kubeconfig, timeout))
        except CliError as error:
            # It may have been meant as either.
            error.args = (f"there is no file {source}, and of an object of that name: {error}",)
            raise
        found = [one for each in objects for one in replayed_object(each, source)]
    if not found:
        raise InvalidInput(
            f"{source}: no recorded decision in it; they stand in status.scaling.history once the number of "
            "engines was decided"
        )
    if output is OutputFormat.table:
        table = Table(box=None, padding=(0, 2))
        for column in ("when", "engines", "asked for by", "why", "again"):
            table.add_column(column, overflow="fold")
        for one in found:
            made = one.recorded.decision
            table.add_row(
                one.where,
                f"{one.recorded.observation.desired} -> {made.target}",
                made.binding,
                Text(made.reason),
                Text("the same") if one.same else Text(f"{one.again.target}: {one.again.reason}", "red"),
            )
        Console().print(table)
    else:
        print_document([one.to_json() for one in found], output)
    if differing := [one.where for one in found if not one.same]:
        raise RunFailed(
            f"{len(differing)} of {len(found)} decisions differ when they are made again, as they may after "
            f"an update: {', '.join(differing[:5])}"
        )
