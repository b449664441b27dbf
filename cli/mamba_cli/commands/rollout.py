"""`mambaserve rollout status|pause|resume|promote|abort`: the canary of a MambaDeployment in a cluster."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels

if TYPE_CHECKING:
    from mamba_cli.status.rollout_requests import CanaryView, Verb

command = typer.Typer(name="rollout", help="Show and steer a canary.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", envvar="MAMBASERVE_ROLLOUT_NAME", help="Name of the MambaDeployment in the cluster."
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", envvar="MAMBASERVE_ROLLOUT_NAMESPACE", help="Namespace of the MambaDeployment."
    ),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        envvar="MAMBASERVE_KUBECONFIG",
        help="Kubeconfig file; default: the pod's service account, then KUBECONFIG.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.001, envvar="MAMBASERVE_ROLLOUT_TIMEOUT", help="Timeout of the API server, in seconds."
    ),
]


@command.command("status", cls=CommandWithPanels)
def status(
    name: Name,
    namespace: Namespace = "default",
    kubeconfig: Kubeconfig = None,
    timeout: Timeout = 5.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
) -> None:
    """Show the step, weight and numbers of the canary, or the change that was last taken back."""
    import asyncio

    from mamba_cli.status.rollout_requests import canary_view

    view = asyncio.run(canary_view(namespace, name, kubeconfig, timeout))
    if output is not OutputFormat.table:
        print_document(view.to_json(), output)
        return
    for line in _lines(view):
        typer.echo(line)


@command.command("pause", cls=CommandWithPanels)
def pause(
    name: Name, namespace: Namespace = "default", kubeconfig: Kubeconfig = None, timeout: Timeout = 5.0
) -> None:
    """Keep the canary at its step and weight; it is still aborted if it is worse."""
    _ask("pause", name, namespace, kubeconfig, timeout)


@command.command("resume", cls=CommandWithPanels)
def resume(
    name: Name, namespace: Namespace = "default", kubeconfig: Kubeconfig = None, timeout: Timeout = 5.0
) -> None:
    """Continue a paused canary, or one whose step waits for a person."""
    _ask("resume", name, namespace, kubeconfig, timeout)


@command.command("promote", cls=CommandWithPanels)
def promote(
    name: Name, namespace: Namespace = "default", kubeconfig: Kubeconfig = None, timeout: Timeout = 5.0
) -> None:
    """Replace all engines by the candidate's revision, whatever steps are left."""
    _ask("promote", name, namespace, kubeconfig, timeout)


@command.command("abort", cls=CommandWithPanels)
def abort(
    name: Name, namespace: Namespace = "default", kubeconfig: Kubeconfig = None, timeout: Timeout = 5.0
) -> None:
    """End the candidate; the engines of the ready revision serve on."""
    _ask("abort", name, namespace, kubeconfig, timeout)


def _ask(verb: "Verb", name: str, namespace: str, kubeconfig: str | None, timeout: float) -> None:
    import asyncio

    from mamba_cli.status.rollout_requests import request_of_canary

    view = asyncio.run(request_of_canary(verb, namespace, name, kubeconfig, timeout))
    revision = (view.canary or {}).get("revision", "")
    typer.echo(
        f"asked the operator to {verb} the canary of revision {revision}; see mambaserve rollout status "
        f"{name} -n {namespace}"
    )


def _lines(view: "CanaryView") -> list[str]:
    """Return the canary in words."""
    canary, failed = view.canary, view.failed
    if canary is None:
        lines = [f"{view.name}: no canary is under way; engines run revision {view.ready_revision or '-'}"]
        if failed is not None:
            lines.append(
                f"revision {failed['revision']} was taken back: {failed['reason']}: {failed['message']}"
            )
        return lines
    lines = [
        f"{view.name}: revision {canary.get('revision', '')} beside {canary.get('stableRevision', '')}",
        f"phase     {canary.get('phase', '')}",
        *_stage_lines(canary),
        f"engines   {canary.get('engines', '')} ready",
        f"requests  {canary.get('requests', 0)} {'in this step' if canary.get('step') else 'compared'}",
        f"verdict   {canary.get('verdict', '')}",
    ]
    lines += [
        f"{one.get('measure', ''):9} {one.get('candidate', '')}; beside it {one.get('stable', '')} "
        f"({one.get('looks', 0)} looks)"
        for one in canary.get("comparisons") or ()
    ]
    return lines


def _stage_lines(canary: dict[str, Any]) -> list[str]:
    """Return the step and its share; step 0 is the phase of copies before the first one."""
    if not canary.get("step"):
        share = f"{canary.get('shadow', 0)}% of the conversations, whose answers are compared and dropped"
        return [f"step      copies, before the first of {canary.get('steps', 0)} steps", f"copies    {share}"]
    return [
        f"step      {canary['step']} of {canary.get('steps', 0)}",
        f"weight    {canary.get('weight', 0)}% of the conversations",
    ]
