"""`mambaserve plan`: what an engine would do with its memory, without starting anything."""

from typing import Annotated

import typer

from mamba_cli.output import Output, print_document


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODEL",
            help="MambaDeployment YAML (- = standard input), a model's directory or config.json, or its URI.",
        ),
    ],
    device_memory: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_DEVICE_MEMORY", help="Memory of one GPU, such as 80Gi."),
    ] = None,
    utilization: Annotated[
        float | None,
        typer.Option(
            envvar="MAMBASERVE_UTILIZATION", help="Share of it the engine may take; 0.9 unless the file says."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0, envvar="MAMBASERVE_GPUS", help="1 plans for a GPU, 0 for the CPU; more are refused."
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = Output.table,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", envvar="MAMBASERVE_VERBOSE", help="All numbers, and why not the other choices."
        ),
    ] = False,
) -> None:
    """Show strategy, concurrency and memory of an engine before it runs. Exit code 3: it does not fit."""

    from rich.console import Console

    from mamba_cli.errors import DoesNotFit, InvalidInput
    from mamba_cli.local.plan_source import plan_source
    from mamba_cli.local.plan_view import plan_view
    from mamba_cli.local.planning import PlanFlags, size_option

    if utilization is not None and not 0 < utilization <= 1:
        raise InvalidInput(f"--utilization: {utilization} must be above 0 and at most 1")
    if gpus is not None and gpus > 1:
        raise InvalidInput(
            f"--gpus: {gpus} is refused by this version: an engine uses one GPU and the others would idle; "
            "plan with 1 and run more engines"
        )
    flags = PlanFlags(size_option("--device-memory", device_memory), utilization, gpus)
    outcomes = plan_source(source, flags)
    if output is Output.table:
        console = Console()
        for outcome in outcomes:
            console.print(plan_view(outcome, verbose=verbose))
    else:
        shown = [outcome.to_json() for outcome in outcomes]
        document = shown if len(shown) > 1 else shown[0]
        print_document(document, output)
    if misfits := [outcome for outcome in outcomes if outcome.misfit]:
        # The table has said it all; after JSON the reason goes to standard error in full.
        raise DoesNotFit(
            "; ".join(
                f"the plan of {each.name} does not fit"
                if output is Output.table
                else f"{each.name}: {each.misfit}"
                for each in misfits
            )
        )
