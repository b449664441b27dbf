"""`mambaserve plan`: the memory plan of an engine, or the size of the fleet that serves a trace."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mamba_api.choices import KvCacheDtype, Quantization
from mamba_cli.bench.trace_units import TimeUnit, TraceUnits
from mamba_cli.errors import InvalidInput, NoFittingPlan
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels
from mamba_cli.profiles_option import ProfilesOption

if TYPE_CHECKING:
    from mamba_cli.fleet.size_search.trace_plan import TraceFlags
    from mamba_cli.local.planning import PlanFlags

_PROGRAMS = frozenset(("vllm", "sglang", "python", "python3", "docker", "podman", "sudo", "uv"))
"""First words of commands of other servers."""


class _PlanCommand(CommandWithPanels):
    """The command `plan`, which says that the command of another server needs quotes."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises InvalidInput for a command that was given as several arguments."""
        if len(args) > 1 and args[0] in _PROGRAMS and not Path(args[0]).exists():
            raise InvalidInput(
                "put the command of the other server into quotes: "
                f"mambaserve plan '{' '.join(args[:2])} …' --gpu H100"
            )
        return super().parse_args(context, args)


CLASS = _PlanCommand
FLEET = "Fleet for a trace"


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODEL",
            help="MambaDeployment YAML (- = standard input), a model's directory, config.json or URI, "
            "known://NAME for a published model whose configuration ships with mambaserve, such as "
            "known://granite-4.0-h-tiny, or how another server is started: 'vllm serve …', an SGLang "
            "command, or YAML of KServe, KubeAI, llm-d or a Deployment.",
        ),
    ],
    device_memory: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_DEVICE_MEMORY",
            help="Memory or name of a GPU, such as 80Gi or H100; default: the GPU or CPU of this machine.",
        ),
    ] = None,
    utilization: Annotated[
        float | None,
        typer.Option(
            envvar="MAMBASERVE_UTILIZATION",
            help="Share of the device memory that the engine may use; default: as in the file, else 0.9.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0,
            envvar="MAMBASERVE_GPUS",
            help="1 plans for a GPU, 0 for the CPU; a larger number is refused. Default: as in the file, "
            "else 1 where this machine has a GPU.",
        ),
    ] = None,
    quantization: Annotated[
        Quantization | None,
        typer.Option(
            envvar="MAMBASERVE_QUANTIZATION",
            help="How the engine holds matrices, as in mambaserve serve; default: as in the file, else none.",
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        KvCacheDtype | None,
        typer.Option(
            envvar="MAMBASERVE_KV_CACHE_DTYPE",
            help="Type of keys and values in pages, as in mambaserve serve; default: as in the file.",
        ),
    ] = None,
    resource_profiles: ProfilesOption = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            envvar="MAMBASERVE_VERBOSE",
            help="Show all numbers, the reasons against other choices, and the plans for other sizes of GPU.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_TRACE",
            rich_help_panel=FLEET,
            help="Recorded requests. A simulation finds how many GPUs of which kind serve them in time.",
        ),
    ] = None,
    format_: Annotated[
        Literal["mooncake", "azure"] | None,
        typer.Option(
            "--format",
            envvar="MAMBASERVE_PLAN_FORMAT",
            rich_help_panel=FLEET,
            help="Format of the trace: Mooncake JSON lines or Azure CSV; default: detected.",
        ),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            envvar="MAMBASERVE_PLAN_BLOCK_TOKENS",
            rich_help_panel=FLEET,
            help="Prompt tokens that one of the trace's hash_ids stands for; default: 512.",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_TIME_UNIT",
            rich_help_panel=FLEET,
            help="Unit of the timestamps in a trace with hash_ids; default: ms.",
        ),
    ] = None,
    slo_ttft: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SLO_TTFT",
            rich_help_panel=FLEET,
            help="Longest time to first token that meets the SLO, such as 2s.",
        ),
    ] = None,
    slo_tpot: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SLO_TPOT",
            rich_help_panel=FLEET,
            help="Longest mean time per output token that meets the SLO, such as 100ms.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_GPU",
            rich_help_panel=FLEET,
            help="Kind of GPU to try, such as H100, or H100=3 with its price per hour; may be repeated; "
            "default: all kinds. Without --trace: the GPU to plan for.",
        ),
    ] = None,
    max_gpus: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            envvar="MAMBASERVE_PLAN_MAX_GPUS",
            rich_help_panel=FLEET,
            help="Largest fleet to try, in GPUs.",
        ),
    ] = 64,
    requests: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="MAMBASERVE_PLAN_REQUESTS",
            rich_help_panel=FLEET,
            help="Number of requests to simulate: the busiest part of a longer trace; 0 = all.",
        ),
    ] = 1000,
    seed: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_PLAN_SEED",
            rich_help_panel=FLEET,
            help="Seed of the simulation; equal seeds give equal answers.",
        ),
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_PLAN_PLOT",
            rich_help_panel=FLEET,
            help="SVG file for a chart of cost against SLO attainment.",
        ),
    ] = None,
) -> None:
    """Show strategy, concurrency and memory of an engine before it runs. Exit code 3: it does not fit.

    With --trace, show how many GPUs of which kind, with which strategy, serve the recorded requests in time.
    Exit code 3: no fleet does.
    """
    from mamba_cli.local.planning import PlanFlags, size_option
    from mamba_cli.resource_profiles import known_profiles

    _check_utilization(utilization)
    _check_gpus(gpus)
    flags = PlanFlags(
        size_option("--device-memory", device_memory),
        utilization,
        gpus,
        known_profiles(resource_profiles),
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
    )
    if trace is None:
        fleet_only = (slo_ttft, slo_tpot, plot, format_, block_tokens, time_unit)
        if any(fleet_only):
            raise InvalidInput(
                "--slo-ttft, --slo-tpot, --plot, --format, --block-tokens and --time-unit go with --trace"
            )
        _plan_engines(source, _with_gpu(flags, gpu or []), output, verbose=verbose)
        return
    if device_memory is not None or gpus is not None:
        raise InvalidInput("--trace tries kinds of GPU: give --gpu instead of --device-memory and --gpus")
    from mamba_cli.fleet.size_search.trace_plan import TraceFlags

    trace_flags = TraceFlags(
        trace=trace, expected=format_, units=TraceUnits.of(block_tokens, time_unit), ttft=slo_ttft,
        tpot=slo_tpot, gpus=gpu or [], most=max_gpus, requests=requests, seed=seed, plot=plot,
    )  # fmt: skip
    _plan_fleet(source, replace(flags, any_gpu=True), trace_flags, output)


def _check_utilization(utilization: float | None) -> None:
    if utilization is not None and not 0 < utilization <= 1:
        raise InvalidInput(f"--utilization: {utilization} must be above 0 and at most 1")


def _check_gpus(gpus: int | None) -> None:
    if gpus is not None and gpus > 1:
        raise InvalidInput(
            f"--gpus: {gpus} is refused by this version: an engine uses one GPU and the others would idle; "
            "plan with 1 and run more engines"
        )


def _with_gpu(flags: "PlanFlags", gpus: list[str]) -> "PlanFlags":
    """Return `flags` with the memory of the card that --gpu names, if any. Raises `InvalidInput`."""
    from mamba_cli.local.planning import size_option

    if not gpus:
        return flags
    if len(gpus) > 1 or flags.device_memory is not None or flags.gpus == 0:
        raise InvalidInput(
            "--gpu: without --trace give it once, and neither --device-memory nor --gpus 0 with it"
        )
    return replace(flags, device_memory=size_option("--gpu", gpus[0]))


def _plan_fleet(source: str, flags: "PlanFlags", trace_flags: "TraceFlags", output: OutputFormat) -> None:
    """Show the fleet that serves the trace. Raises `NoFittingPlan` when there is none."""
    from rich.console import Console

    from mamba_cli.fleet.size_search.trace_plan import plan_trace

    report = plan_trace(source, flags, trace_flags)
    if output is OutputFormat.table:
        Console().print(report.view())
    else:
        print_document(report.to_json(), output)
    if report.answer.chosen is None:
        raise NoFittingPlan(
            f"no fleet of up to {trace_flags.most} GPUs serves enough of the requests in time"
        )


def _plan_engines(source: str, flags: "PlanFlags", output: OutputFormat, *, verbose: bool) -> None:
    """Show the plan of every engine that `source` holds. Raises `NoFittingPlan` when one does not fit."""
    from rich.console import Console

    from mamba_cli.local.plan_source import plan_source
    from mamba_cli.local.plan_view import plan_view
    from mamba_cli.migration.migration_plan import migration_plans, titles_of_misfits

    if (migrations := migration_plans(source, flags)) is not None:
        if output is OutputFormat.table:
            console = Console()
            for migration in migrations:
                console.print(migration.view(verbose=verbose))
        else:
            documents = [migration.to_json() for migration in migrations]
            print_document(documents if len(documents) > 1 else documents[0], output)
        if titles := titles_of_misfits(migrations):
            raise NoFittingPlan(f"the plan of {', '.join(titles)} does not fit")
        return
    outcomes = plan_source(source, flags)
    if output is OutputFormat.table:
        console = Console()
        for outcome in outcomes:
            console.print(plan_view(outcome, verbose=verbose))
    else:
        documents = [outcome.to_json() for outcome in outcomes]
        print_document(documents if len(documents) > 1 else documents[0], output)
    if misfits := [outcome for outcome in outcomes if outcome.misfit]:
        # The table already has the numbers; after JSON, standard error gets the whole reason.
        raise NoFittingPlan(
            "; ".join(
                f"the plan of {outcome.title} does not fit"
                if output is OutputFormat.table
                else f"{outcome.title}: {outcome.misfit}"
                for outcome in misfits
            )
        )
