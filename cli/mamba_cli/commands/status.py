"""`mambaserve status`: the state of an endpoint and its engines, or of the MambaDeployments of a cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from mamba_cli.errors import CliError, InvalidInput, RunFailed
from mamba_cli.output import OutputFormat, print_document

if TYPE_CHECKING:
    from pathlib import Path

    from mamba_cli.status.endpoint_status import EndpointStatus

    Answer = EndpointStatus | BaseException


def command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[URL|FILE|NAME]",
            envvar="MAMBASERVE_URL",
            help="URL of a gateway or an engine, a file that `up` serves, or the name of a deployment "
            "that `up` serves; with --namespace, the name of a MambaDeployment; default there: all.",
        ),
    ] = "http://127.0.0.1:8000",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            envvar="MAMBASERVE_STATUS_NAMESPACE",
            help="Namespace in the cluster whose MambaDeployments to show.",
        ),
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_KUBECONFIG",
            help="With --namespace: kubeconfig file; default: the pod's service account, then KUBECONFIG.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65535,
            envvar="MAMBASERVE_PORT",
            help="With FILE: the --port of `up`, where several processes serve the file or none is found.",
        ),
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="MAMBASERVE_HOST", help="With FILE: the --host of `up`.")
    ] = "127.0.0.1",
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, envvar="MAMBASERVE_STATUS_TIMEOUT", help="Timeout of each request, in seconds."
        ),
    ] = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
) -> None:
    """Show readiness, strategy, requests, memory and resumed tokens of engines. Exit code 1: no answer."""
    if namespace is not None:
        named = getattr(context.get_parameter_source("target"), "name", "") == "COMMANDLINE"
        _show_cluster(namespace, target if named else None, kubeconfig, timeout, output)
        return
    import asyncio

    urls, models = _endpoints(context, target, host, port)
    answers = asyncio.run(_ask(urls, timeout))
    if models:
        answers = [_checked_models(answer, models, target) for answer in answers]
    _show_endpoints(
        [answer for answer in answers if not isinstance(answer, BaseException)], len(urls), output
    )
    _raise_failures(answers)


def _endpoints(context: typer.Context, target: str, host: str, port: int) -> tuple[list[str], list[str]]:
    """Return the URLs that `target` stands for and, for a file, the models expected there.

    Raises `InvalidInput` for an unusable target, `RunFailed` for a file of which nothing runs.
    """
    import os.path
    from pathlib import Path

    from mamba_cli.endpoint import base_url, without_scheme
    from mamba_cli.local.documents import read_deployments
    from mamba_cli.local.running import running
    from mamba_edge.listener import url_at

    if "://" in target:
        return [base_url(target)], []
    if not os.path.exists(target):
        if urls := [deployment.url for deployment in running() if deployment.name == target]:
            return urls[:1], []
        if (no_url := without_scheme(target)) is not None:
            raise no_url
    active = [
        loaded.deployment
        for loaded in read_deployments([Path(target)])
        if loaded.deployment.spec.mode == "Active"
    ]
    if not active:
        raise RunFailed(f"{target}: nothing in it runs, because spec.mode is Plan")
    urls = _urls_of_file(context, Path(target), [deployment.name for deployment in active])
    return urls or [base_url(url_at(host, port))], [deployment.served_name for deployment in active]


async def _ask(urls: list[str], timeout: float) -> "list[Answer]":
    import asyncio

    import aiohttp

    from mamba_cli.status.endpoint_status import endpoint_status

    limits = aiohttp.ClientTimeout(total=timeout)
    async with aiohttp.ClientSession(timeout=limits) as session:
        requests = (endpoint_status(session, url) for url in urls)
        return await asyncio.gather(*requests, return_exceptions=True)


def _show_endpoints(statuses: "list[EndpointStatus]", endpoints: int, output: OutputFormat) -> None:
    """Print the statuses; a document of several `endpoints` is a list, even if one alone answered."""
    from rich.console import Console

    from mamba_cli.status.status_view import status_view

    if output is OutputFormat.table:
        console = Console()
        for index, status in enumerate(statuses):
            if index:
                console.print()
            console.print(status_view(status))
    elif statuses:
        documents = [status.to_json() for status in statuses]
        print_document(documents if endpoints > 1 else documents[0], output)


def _raise_failures(answers: "list[Answer]") -> None:
    """Raise `RunFailed` with the messages of all endpoints that failed, if any did."""
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in failed:
        if not isinstance(error, CliError):
            raise error
    if failed:
        raise RunFailed("\n".join(str(error) for error in failed))


def _urls_of_file(context: typer.Context, file: "Path", names: list[str]) -> list[str]:
    """Return the URLs at which an `up` of this user serves the file; none where --host is given."""
    from mamba_cli.local.running import urls_of_file

    chosen = {
        name: getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"
        for name in ("host", "port")
    }
    if chosen["host"]:
        return []
    return urls_of_file(file, names, context.params["port"] if chosen["port"] else None)


def _checked_models(answer: "Answer", models: "list[str]", target: str) -> "Answer":
    """Return the answer, or an error if the endpoint serves none of the `models` of the file."""
    if isinstance(answer, BaseException):
        return answer
    served = {engine.model for engine in answer.engines if engine.model}
    if not served or served & set(models):
        return answer
    return RunFailed(
        f"{target}: {answer.url} serves {', '.join(sorted(served))}, not {', '.join(models)}: give the "
        "--port of the `up` that serves this file"
    )


def _show_cluster(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float, output: OutputFormat
) -> None:
    import asyncio

    from rich.console import Console

    from mamba_cli.status.deployment_status import deployment_statuses
    from mamba_cli.status.status_view import deployments_view

    if name is not None and ("://" in name or "/" in name):
        raise InvalidInput(f"{name}: with --namespace give the name of a MambaDeployment, or none")
    statuses = asyncio.run(deployment_statuses(namespace, name, kubeconfig, timeout))
    if output is not OutputFormat.table:
        documents = [status.to_json() for status in statuses]
        print_document(documents if name is None else documents[0], output)
    elif statuses:
        Console().print(deployments_view(statuses))
    else:
        Console(stderr=True).print(f"no MambaDeployment in the namespace {namespace}", markup=False)
