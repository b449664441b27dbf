"""`mambaserve plan`: what an engine would do with its memory, and how many of them a trace takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mamba_cli.bench.trace_units import TimeUnit
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels
from mamba_cli.profiles_option import ProfilesOption

if TYPE_CHECKING:
    from mamba_cli.fleet.size_search.sizing_view import SizingReport
    from mamba_cli.local.planning import PlanFlags

CLASS = CommandWithPanels
FLEET = "Fleet for a trace"


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODEL",
            help="MambaDeployment YAML (- = standard input), a model's directory or config.json, its URI, or "
            "known://NAME: a published model whose configuration ships with this, such as "
            "known://granite-4.0-h-tiny.",
        ),
    ],
    device_memory: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_DEVICE_MEMORY",
            help="A GPU: its memory or its name, such as 80Gi or H100. Default: this machine, GPU or CPU.",
        ),
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
            min=0,
            envvar="MAMBASERVE_GPUS",
            help="1 plans for a GPU, 0 for the CPU; more are refused. Default: as the file says, or as this "
            "machine has them.",
        ),
    ] = None,
    resource_profiles: ProfilesOption = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="table, json or yaml.")
    ] = OutputFormat.table,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            envvar="MAMBASERVE_VERBOSE",
            help="All numbers, why not the other choices, and other sizes of GPU.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_TRACE",
            rich_help_panel=FLEET,
            help="Recorded requests: how many GPUs of which kind serve them in time, by simulation.",
        ),
    ] = None,
    format_: Annotated[
        Literal["mooncake", "azure"] | None,
        typer.Option(
            "--format",
            envvar="MAMBASERVE_PLAN_FORMAT",
            rich_help_panel=FLEET,
            help="Of the trace: Mooncake JSON lines or Azure CSV; default: as found.",
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            envvar="MAMBASERVE_PLAN_BLOCK_TOKENS",
            rich_help_panel=FLEET,
            help="Prompt tokens of one of the trace's hash_ids; default: 512.",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_TIME_UNIT",
            rich_help_panel=FLEET,
            help="Of the timestamps beside hash_ids; default: ms.",
        ),
    ] = None,
    slo_ttft: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SLO_TTFT",
            rich_help_panel=FLEET,
            help="Promised time to the first token, such as 2s.",
        ),
    ] = None,
    slo_tpot: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SLO_TPOT",
            rich_help_panel=FLEET,
            help="Promised mean time of a token after it, such as 100ms.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_GPU",
            rich_help_panel=FLEET,
            help="Kind to try, such as H100, or with the price of an hour, H100=3; repeat it. Default: all. "
            "Without --trace: the GPU to plan for.",
        ),
    ] = None,
    max_gpus: Annotated[
        int,
        typer.Option(
            min=1, max=1024, envvar="MAMBASERVE_PLAN_MAX_GPUS", rich_help_panel=FLEET, help="Largest fleet."
        ),
    ] = 64,
    requests: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="MAMBASERVE_PLAN_REQUESTS",
            rich_help_panel=FLEET,
            help="Of a longer trace, its busiest part of so many is simulated; 0 = all.",
        ),
    ] = 1000,
    seed: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SEED",
            rich_help_panel=FLEET,
            help="Of the simulation: the same gives the same answer.",
        ),
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_PLOT", rich_help_panel=FLEET, help="Cost against attainment, as SVG file."
        ),
    ] = None,
) -> None:
    """Show strategy, concurrency and memory of an engine before it runs. Exit code 3: it does not fit.

    With --trace: how many GPUs of which kind and which strategy serve it. Exit code 3: no fleet does.
    """

    from dataclasses import replace

    from rich.console import Console

    from mamba_cli.bench.trace_units import TraceUnits
    from mamba_cli.errors import InvalidInput, NoFittingPlan
    from mamba_cli.local.plan_source import plan_source
    from mamba_cli.local.plan_view import plan_view
    from mamba_cli.local.planning import PlanFlags, size_option
    from mamba_cli.resource_profiles import known_profiles

    if utilization is not None and not 0 < utilization <= 1:
        raise InvalidInput(f"--utilization: {utilization} must be above 0 and at most 1")
    if gpus is not None and gpus > 1:
        raise InvalidInput(
            f"--gpus: {gpus} is refused by this version: an engine uses one GPU and the others would idle; "
            "plan with 1 and run more engines"
        )
    flags = PlanFlags(
        size_option("--device-memory", device_memory), utilization, gpus, known_profiles(resource_profiles)
    )
    if trace is not None:
        if device_memory is not None or gpus is not None:
            raise InvalidInput("--trace tries kinds of GPU: say --gpu instead of --device-memory and --gpus")
        asked = {
            "trace": trace, "expected": format_, "ttft": slo_ttft, "tpot": slo_tpot, "gpus": gpu or [],
            "most": max_gpus, "requests": requests, "seed": seed, "plot": plot,
            "units": TraceUnits.of(block_tokens, time_unit),
        }  # fmt: skip
        found = _fleet(source, replace(flags, any_gpu=True), asked)
        if output is OutputFormat.table:
            Console().print(found.view())
        else:
            print_document(found.to_json(), output)
        if found.answer.chosen is None:
            raise NoFittingPlan(f"no fleet of up to {max_gpus} GPUs serves enough of the requests in time")
        return
    if slo_ttft or slo_tpot or plot or format_ or block_tokens or time_unit:
        raise InvalidInput(
            "--slo-ttft, --slo-tpot, --plot, --format, --block-tokens and --time-unit go with --trace"
        )
    if gpu:
        if len(gpu) > 1 or device_memory is not None or gpus == 0:
            raise InvalidInput(
                "--gpu: without --trace it is given once, without --device-memory and --gpus 0"
            )
        flags = replace(flags, device_memory=size_option("--gpu", gpu[0]))
    outcomes = plan_source(source, flags)
    if output is OutputFormat.table:
        console = Console()
        for outcome in outcomes:
            console.print(plan_view(outcome, verbose=verbose))
    else:
        shown = [outcome.to_json() for outcome in outcomes]
        document = shown if len(shown) > 1 else shown[0]
        print_document(document, output)
    if misfits := [outcome for outcome in outcomes if outcome.misfit]:
        # The table has said it all; after JSON the reason goes to standard error in full.
        raise NoFittingPlan(
            "; ".join(
                f"the plan of {each.name} does not fit"
                if output is OutputFormat.table
                else f"{each.name}: {each.misfit}"
                for each in misfits
            )
        )


def _fleet(source: str, flags: "PlanFlags", asked: "dict[str, Any]") -> "SizingReport":
    from mamba_cli.fleet.size_search.trace_plan import TraceFlags, plan_trace

    return plan_trace(source, flags, TraceFlags(**asked))
