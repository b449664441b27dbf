"""`mambaserve doctor`: what keeps this machine or this cluster from serving, each with its cure."""

from typing import Annotated

import typer

from mamba_cli.errors import RunFailed
from mamba_cli.output import OutputFormat, print_document


def command(
    port: Annotated[
        int,
        typer.Option(min=1, max=65535, envvar="MAMBASERVE_PORT", help="Port that `up` or `serve` would use."),
    ] = 8000,
    host: Annotated[
        str, typer.Option(envvar="MAMBASERVE_HOST", help="Address that `up` or `serve` would bind.")
    ] = "127.0.0.1",
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_KUBECONFIG",
            help="Kubeconfig of the cluster to check; default: the one that kubectl uses.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            envvar="MAMBASERVE_DOCTOR_TIMEOUT",
            help="Seconds for each answer of the Hub, of Redis and of the cluster.",
        ),
    ] = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
) -> None:
    """Check this machine and the cluster: show each defect with its cure. Exit code 1: there is a defect.

    Checked are the processor, memory, packages, torch, GPU, compiler, kernels, port, model cache, Hub, Redis,
    cluster and CRD.
    """
    from rich.console import Console

    from mamba_cli.doctor.examination import examination
    from mamba_cli.doctor.finding import Verdict
    from mamba_cli.doctor.findings_view import finding_line
    from mamba_cli.effective_settings import known_variables
    from mamba_cli.main import application

    console = Console(soft_wrap=True)
    findings = []
    for finding in examination(host, port, kubeconfig, timeout, known_variables(application())):
        findings.append(finding)
        if output is OutputFormat.table:
            console.print(finding_line(finding), highlight=False)
    if output is not OutputFormat.table:
        print_document([finding.to_json() for finding in findings], output)
    if wrong := [finding.subject for finding in findings if finding.verdict is Verdict.broken]:
        raise RunFailed(f"broken: {', '.join(wrong)}")
