"""`mambaserve stop`: drains and ends an `up` of this machine."""

import os
import signal
import time
from typing import Annotated

import typer

from mamba_cli.errors import InvalidInput, RunFailed

_POLL = 0.1
"""Seconds between two looks whether the process has ended."""


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            envvar="MAMBASERVE_STOP_NAME",
            help="Deployment to end, as `mambaserve ps` lists it.",
        ),
    ],
    timeout: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="MAMBASERVE_STOP_TIMEOUT",
            help="Seconds to wait for the end; the deployment goes on draining after them.",
        ),
    ] = 120.0,
) -> None:
    """End the `mambaserve up` that serves a deployment: requests in flight are answered first.

    An `up` that serves several deployments ends with all of them. Exit code 1: it still drains.
    """
    from mamba_cli.local.running import running

    deployments = running()
    chosen = next((deployment for deployment in deployments if deployment.name == name), None)
    if chosen is None:
        names = ", ".join(sorted({deployment.name for deployment in deployments}))
        raise InvalidInput(f"{name} does not run here; {f'these do: {names}' if names else 'nothing does'}")
    served = sorted(deployment.name for deployment in deployments if deployment.pid == chosen.pid)
    typer.echo(f"draining {', '.join(served)} (process {chosen.pid})", err=True)
    try:
        os.kill(chosen.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + timeout
    while any(deployment.pid == chosen.pid for deployment in running()):
        if time.monotonic() >= deadline:
            raise RunFailed(f"{name} still drains after {timeout:g} s: process {chosen.pid}")
        time.sleep(_POLL)
