"""`mambaserve scaling replay`: computes recorded decisions of the operator's autoscaler again."""

from typing import Annotated

import typer

from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels

command = typer.Typer(name="scaling", help="Replay decisions of the autoscaler.", no_args_is_help=True)


@command.command("replay", cls=CommandWithPanels)
def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_OBJECT",
            envvar="MAMBASERVE_SCALING_SOURCE",
            help="A file of recorded decisions, one JSON object per line, or of MambaDeployments as "
            "`kubectl get -o yaml` prints them; or the name of a MambaDeployment in the cluster.",
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            envvar="MAMBASERVE_SCALING_NAMESPACE",
            help="Namespace of the MambaDeployment.",
        ),
    ] = "default",
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_KUBECONFIG",
            help="Kubeconfig file; default: the pod's service account, then KUBECONFIG.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, envvar="MAMBASERVE_SCALING_TIMEOUT", help="Timeout of the API server, in seconds."
        ),
    ] = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
) -> None:
    """Compute recorded scaling decisions again from their inputs and show why. Exit code 1: one differs."""
    import asyncio
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mamba_cli.scaling.replay import replayed_file, replayed_object
    from mamba_cli.status.deployment_status import deployments_of

    path = Path(source)
    if path.exists():
        decisions = replayed_file(path)
    elif "/" in source or "." in source:
        raise InvalidInput(
            f"{source}: no such file; for a MambaDeployment in the cluster give its name and -n"
        )
    else:
        try:
            objects = asyncio.run(deployments_of(namespace, source, kubeconfig, timeout))
        except CliError as error:
            # The argument can name a file or an object, so the message speaks of both.
            error.args = (f"there is no file {source}, and the cluster gives none: {error}",)
            raise
        decisions = [decision for manifest in objects for decision in replayed_object(manifest, source)]
    if not decisions:
        raise InvalidInput(
            f"{source}: holds no recorded decision; the operator records them in status.scaling.history "
            "once it scales the deployment"
        )
    if output is OutputFormat.table:
        table = Table(box=None, padding=(0, 2))
        for column in ("when", "engines", "bound by", "why", "computed again"):
            table.add_column(column, overflow="fold")
        for replayed in decisions:
            recorded, again = replayed.recorded.decision, replayed.again
            table.add_row(
                replayed.where,
                f"{replayed.recorded.observation.desired} -> {recorded.target}",
                recorded.binding,
                Text(recorded.reason),
                Text("the same") if replayed.same else Text(f"{again.target}: {again.reason}", "red"),
            )
        Console().print(table)
    else:
        print_document([replayed.to_json() for replayed in decisions], output)
    if differing := [replayed.where for replayed in decisions if not replayed.same]:
        raise RunFailed(
            f"{len(differing)} of {len(decisions)} decisions differ when computed again, which an update can "
            f"cause: {', '.join(differing[:5])}"
        )
