"""`mambaserve status`: what an endpoint and its engines do at the moment, or what a cluster says of them."""

from typing import TYPE_CHECKING, Annotated

import typer

from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.output import OutputFormat, print_document

if TYPE_CHECKING:
    from pathlib import Path

    from mamba_cli.status.endpoint_status import EndpointStatus


def command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[URL|FILE|NAME]",
            envvar="MAMBASERVE_URL",
            help="A gateway or an engine; or the file that `up` serves, for each of its deployments, or the "
            "name of one of them; with --namespace the name of a MambaDeployment, all without one.",
        ),
    ] = "http://127.0.0.1:8000",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            envvar="MAMBASERVE_STATUS_NAMESPACE",
            help="Ask the cluster: the status of the MambaDeployments of this namespace.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_KUBECONFIG",
            help="With --namespace: a kubeconfig file. Without it: the pod's account, then KUBECONFIG.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            envvar="MAMBASERVE_PORT",
            help="With FILE: the --port that `up` got, where several serve it or it is not found.",
        ),
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="MAMBASERVE_HOST", help="With FILE: the --host that `up` got.")
    ] = "127.0.0.1",
    timeout: Annotated[
        float,
        typer.Option(min=0.001, envvar="MAMBASERVE_STATUS_TIMEOUT", help="Seconds to wait."),
    ] = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """Show engines, strategy, queue, slots and pages by owner, and what was resumed. Exit code 1: silence."""
    if namespace is not None:
        given = getattr(context.get_parameter_source("target"), "name", "") == "COMMANDLINE"
        _of_cluster(namespace, target if given else None, kubeconfig, timeout, output)
        return

    import asyncio
    import os.path
    from pathlib import Path

    import aiohttp
    from rich.console import Console

    from mamba_cli.endpoint import base_url, without_scheme
    from mamba_cli.local.documents import read_deployments
    from mamba_cli.local.running import running
    from mamba_cli.status.endpoint_status import EndpointStatus, endpoint_status
    from mamba_cli.status.status_view import status_view
    from mamba_edge.listener import url_at

    expected: list[str] = []
    if "://" in target:
        urls = [base_url(target)]
    elif not os.path.exists(target) and (named := [each.url for each in running() if each.name == target]):
        urls = named[:1]
    elif (meant := without_scheme(target)) and not os.path.exists(target):
        raise meant
    else:
        active = [each for each in read_deployments([Path(target)]) if each.deployment.spec.mode == "Active"]
        expected = [each.deployment.served_name for each in active]
        urls = _urls_of_file(context, Path(target), [each.deployment.name for each in active])
        urls = urls or [base_url(url_at(host, port + index)) for index in range(len(active))]
    if not urls:
        raise RunFailed(f"{target}: nothing in it runs: mode is Plan")

    async def ask() -> list[EndpointStatus | BaseException]:
        limits = aiohttp.ClientTimeout(total=timeout)
        async with aiohttp.ClientSession(timeout=limits) as session:
            asked = (endpoint_status(session, url) for url in urls)
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    if len(expected) == len(answers):
        answers = [_of_another(*each, target) for each in zip(answers, expected, strict=True)]
    found = [each for each in answers if isinstance(each, EndpointStatus)]
    if output is OutputFormat.table:
        console = Console()
        for index, each in enumerate(found):
            if index:
                console.print()
            console.print(status_view(each))
    elif found:
        shown = [each.to_json() for each in found]
        document = shown if len(urls) > 1 else shown[0]
        print_document(document, output)
    failed = [each for each in answers if isinstance(each, BaseException)]
    for error in failed:
        if not isinstance(error, CliError):
            raise error
    if failed:
        raise RunFailed("\n".join(str(error) for error in failed))


def _urls_of_file(context: typer.Context, file: "Path", names: list[str]) -> list[str]:
    """Return where an `up` of this user serves them; none for options that mean another machine or user."""
    from mamba_cli.local.running import urls_of_file

    chosen = {
        name: getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"
        for name in ("host", "port")
    }
    if chosen["host"]:
        return []
    return urls_of_file(file, names, context.params["port"] if chosen["port"] else None)


def _of_another(
    answer: "EndpointStatus | BaseException", model: str, target: str
) -> "EndpointStatus | BaseException":
    """Return the answer, or what to say of it if it is of another deployment than the one of the file."""
    if isinstance(answer, BaseException):
        return answer
    served = {engine.model for engine in answer.engines if engine.model}
    if not served or model in served:
        return answer
    return RunFailed(
        f"{target}: {answer.url} serves {', '.join(sorted(served))}, not {model}: give the --port that `up` "
        "of this file got"
    )


def _of_cluster(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float, output: OutputFormat
) -> None:
    import asyncio

    from rich.console import Console

    from mamba_cli.status.deployment_status import deployment_statuses
    from mamba_cli.status.status_view import deployments_view

    if name is not None and ("://" in name or "/" in name):
        raise InvalidInput(f"{name}: with --namespace give the name of a MambaDeployment, or none")
    found = asyncio.run(deployment_statuses(namespace, name, kubeconfig, timeout))
    if output is not OutputFormat.table:
        shown = [each.to_json() for each in found]
        print_document(shown if name is None else shown[0], output)
    elif found:
        Console().print(deployments_view(found))
    else:
        Console(stderr=True).print(f"no MambaDeployment in the namespace {namespace}", markup=False)
