"""`mambaserve up`: MambaDeployments served on this machine, without a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from mamba_cli.profiles_option import ProfilesOption


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="YAML files with MambaDeployments.")],
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            envvar="MAMBASERVE_PORT",
            help="Port of the endpoint, which serves the models of all files. 0 = a free one.",
        ),
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="MAMBASERVE_HOST", help="Address that the endpoint binds.")
    ] = "127.0.0.1",
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            envvar="MAMBASERVE_ONCE",
            help="End once all models are ready, after the demonstration if there is one.",
        ),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            envvar="MAMBASERVE_DEMO",
            help="Send chats that share a prefix and show how much of it is resumed.",
        ),
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", envvar="MAMBASERVE_NO_COLOR", help="Print without colours.")
    ] = False,
    resource_profiles: ProfilesOption = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_LOGS",
            help="Directory of the logs of engines and gateways; default: a new one.",
        ),
    ] = None,
) -> None:
    """Serve the models of FILE on this machine: check, plan, start and supervise them. Ctrl-C drains."""
    from rich.console import Console

    from mamba_cli.local.bring_up import bring_up
    from mamba_cli.resource_profiles import known_profiles

    console = Console(no_color=no_color or None, force_terminal=False if no_color else None)
    code = bring_up(
        files, host=host, port=port, once=once, demo=demo, logs=logs, console=console,
        profiles=known_profiles(resource_profiles),
    )  # fmt: skip
    raise typer.Exit(code)
