"""`mambaserve bench serve`, `sweep`, `trace`, `dataset`: send load to a URL, report latencies and goodput."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.trace_units import TimeUnit
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.plain_help import CommandWithPanels

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mamba_cli.bench.run import LoadPlan

command = typer.Typer(name="bench", help="Measure an endpoint under load.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(envvar="MAMBASERVE_URL", help="Base URL of an OpenAI-compatible server.")]
UrlOption = Annotated[
    str, typer.Option(envvar="MAMBASERVE_URL", help="Base URL of an OpenAI-compatible server.")
]
LongestAnswer = Annotated[
    int | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_MAX_OUTPUT_TOKENS",
        min=1,
        help="Length to which longer answers are cut, in tokens.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_MODEL",
        help="Model to request; default: the first one that the server lists.",
    ),
]
ApiKey = Annotated[
    str | None, typer.Option(envvar="MAMBASERVE_API_KEY", help="API key, sent as bearer token.")
]
Seed = Annotated[
    int, typer.Option(envvar="MAMBASERVE_BENCH_SEED", help="Seed of the random prompts and arrival times.")
]
Vocab = Annotated[
    int,
    typer.Option(
        envvar="MAMBASERVE_BENCH_VOCAB_SIZE", min=9, help="Prompts use token ids below this number."
    ),
]
Warmup = Annotated[
    int,
    typer.Option(
        envvar="MAMBASERVE_BENCH_WARMUP", min=0, help="Requests sent before the run and not counted."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_MAX_CONCURRENCY", min=1, help="Open loop: most requests in flight."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(envvar="MAMBASERVE_BENCH_TIMEOUT", min=0.001, help="Timeout of one request, in seconds."),
]
Ttft = Annotated[
    float | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_SLO_TTFT_MS", help="Goodput: longest time to first token, in milliseconds."
    ),
]
Tpot = Annotated[
    float | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_SLO_TPOT_MS", help="Goodput: longest time per output token, in milliseconds."
    ),
]
E2e = Annotated[
    float | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_SLO_E2E_MS", help="Goodput: longest end-to-end latency, in milliseconds."
    ),
]
Output = Annotated[
    Literal["table", "json"],
    typer.Option(
        envvar="MAMBASERVE_OUTPUT", help="Format of the report; json is the only text on standard output."
    ),
]
Result = Annotated[
    Path | None,
    typer.Option(
        envvar="MAMBASERVE_BENCH_RESULT",
        help="JSON file to write; default: mambaserve-bench-TIME.json (or -sweep-) in the current directory, "
        "and no file with --output json.",
    ),
]

InputTokens = Annotated[
    int,
    typer.Option(envvar="MAMBASERVE_BENCH_INPUT_TOKENS", min=1, help="Mean length of a prompt, in tokens."),
]
OutputTokens = Annotated[
    int,
    typer.Option(envvar="MAMBASERVE_BENCH_OUTPUT_TOKENS", min=1, help="Mean length of an answer, in tokens."),
]
Spread = Annotated[
    float,
    typer.Option(
        envvar="MAMBASERVE_BENCH_SPREAD",
        min=0,
        max=1,
        help="Relative deviation of the lengths from their means, at most.",
    ),
]
SharedPrefix = Annotated[
    float,
    typer.Option(
        envvar="MAMBASERVE_BENCH_SHARED_PREFIX",
        min=0,
        max=1,
        help="Share of each prompt that all prompts of its group begin with.",
    ),
]
PrefixGroups = Annotated[
    int,
    typer.Option(
        envvar="MAMBASERVE_BENCH_PREFIX_GROUPS", min=1, help="Number of groups, each with its own prefix."
    ),
]


@command.command(cls=CommandWithPanels)
def serve(
    url: Url = "http://127.0.0.1:8000",
    requests: Annotated[
        int, typer.Option(envvar="MAMBASERVE_BENCH_REQUESTS", min=1, help="Number of requests.")
    ] = 100,
    rate: Annotated[
        float | None,
        typer.Option(envvar="MAMBASERVE_BENCH_RATE", help="Open loop: requests per second."),
    ] = None,
    arrival: Annotated[
        Literal["poisson", "constant"],
        typer.Option(envvar="MAMBASERVE_BENCH_ARRIVAL", help="Open loop: distribution of the arrival times."),
    ] = "poisson",
    concurrency: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_CONCURRENCY", min=1, help="Closed loop: requests in flight (default 8)."
        ),
    ] = None,
    input_tokens: InputTokens = 512,
    output_tokens: OutputTokens = 128,
    spread: Spread = 0.0,
    shared_prefix: SharedPrefix = 0.0,
    prefix_groups: PrefixGroups = 1,
    max_concurrency: Limit = None,
    warmup: Warmup = 0,
    model: Model = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    slo_ttft_ms: Ttft = None,
    slo_tpot_ms: Tpot = None,
    slo_e2e_ms: E2e = None,
    vocab_size: Vocab = 256,
    seed: Seed = 0,
    output: Output = "table",
    result: Result = None,
) -> None:
    """Send random prompts at a fixed rate (open loop) or concurrency (closed loop)."""
    options = dict(locals())
    from random import Random

    from mamba_cli.bench.arrivals import constant, poisson
    from mamba_cli.bench.prompts import LengthRange, at_times, random_prompts

    if rate is not None and concurrency is not None:
        raise InvalidInput(
            "--rate and --concurrency exclude each other: one is for the open loop, the other for the closed"
        )
    if rate is not None and not rate > 0:
        raise InvalidInput(f"--rate: must be positive, not {rate:g}")

    def prompts() -> Iterator[LoadPrompt]:
        lengths = LengthRange(input_tokens, spread), LengthRange(output_tokens, spread)
        unscheduled = random_prompts(
            requests, *lengths, vocab_size, shared=shared_prefix, groups=prefix_groups, seed=seed
        )
        if rate is None:
            return unscheduled
        rng = Random(f"{seed}/arrivals")
        times = poisson(rate, requests, rng) if arrival == "poisson" else constant(rate, requests)
        return at_times(unscheduled, times)

    if rate is None:
        options["concurrency"] = concurrency or 8
    _run(options, _load_plan(options, prompts, requests, concurrency=options["concurrency"]))


@command.command(cls=CommandWithPanels)
def sweep(
    url: Url = "http://127.0.0.1:8000",
    concurrency: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SWEEP_CONCURRENCY",
            help="Closed loops: requests in flight of each run (default 1,2,4,8,16).",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SWEEP_RATE", help="Open loops: requests per second of each run."
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SWEEP_REQUESTS",
            min=1,
            help="Number of requests of each run; with --concurrency at least two for each in flight.",
        ),
    ] = 40,
    plot: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SWEEP_PLOT",
            help="SVG file to write, with the rate of tokens and the latencies by load.",
        ),
    ] = None,
    input_tokens: InputTokens = 512,
    output_tokens: OutputTokens = 128,
    spread: Spread = 0.0,
    shared_prefix: SharedPrefix = 0.0,
    prefix_groups: PrefixGroups = 1,
    max_concurrency: Limit = None,
    warmup: Warmup = 0,
    model: Model = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    slo_ttft_ms: Ttft = None,
    slo_tpot_ms: Tpot = None,
    slo_e2e_ms: E2e = None,
    vocab_size: Vocab = 256,
    seed: Seed = 0,
    output: Output = "table",
    result: Result = None,
) -> None:
    """Measure several loads one after the other, each with its own prompts; --plot draws them."""
    options = dict(locals())
    import asyncio
    from random import Random

    from rich.console import Console

    from mamba_cli.bench.arrivals import poisson
    from mamba_cli.bench.prompts import LengthRange, at_times, random_prompts
    from mamba_cli.bench.run import execute, write_file
    from mamba_cli.bench.sweep import Step, loads, sweep_table
    from mamba_cli.bench.sweep import sweep as run_sweep
    from mamba_cli.bench.sweep_plot import sweep_svg

    if rate is not None and concurrency is not None:
        raise InvalidInput("--rate and --concurrency exclude each other: a sweep varies one of them")
    kind = "concurrency" if rate is None else "rate"
    numbers = loads(rate or concurrency or "1,2,4,8,16", f"--{kind}", whole=rate is None)
    if plot is not None and not plot.parent.is_dir():
        raise InvalidInput(f"--plot: there is no directory {plot.parent}")

    def step(number: int, load: float) -> Step:
        count = max(requests, 2 * int(load)) if rate is None else requests
        # Prompts of its own, so that no run resumes those of an earlier one.
        own_seed = seed * len(numbers) + number

        def prompts() -> Iterator[LoadPrompt]:
            unscheduled = random_prompts(
                count, LengthRange(input_tokens, spread), LengthRange(output_tokens, spread), vocab_size,
                shared=shared_prefix, groups=prefix_groups, seed=own_seed,
            )  # fmt: skip
            if rate is None:
                return unscheduled
            return at_times(unscheduled, poisson(load, count, Random(f"{own_seed}/arrivals")))

        in_flight = int(load) if rate is None else None
        return Step(load, _load_plan({**options, kind: load, "seed": own_seed}, prompts, count, in_flight))

    errors = Console(stderr=True)
    steps = [step(number, load) for number, load in enumerate(numbers)]
    document = asyncio.run(run_sweep(steps, kind, execute, errors))
    _print(document, sweep_table, options)
    for run in document["runs"]:
        _warn_of_cached_prompts(run, errors)
    _write(document, options, "mambaserve-sweep", errors)
    if plot is not None:
        write_file(sweep_svg(document), plot)
        errors.print(f"drawing written to {plot}", highlight=False, markup=False)
    if (failure := document["failure"]) is not None:
        raise RunFailed(f"{kind} {failure[kind]:g}: {failure['error']}; the lighter loads are reported above")
    if document["interrupted"]:
        raise typer.Exit(1)


@command.command(cls=CommandWithPanels)
def trace(
    file: Annotated[Path, typer.Argument(help="Trace: Azure CSV or Mooncake JSON lines.")],
    url: UrlOption = "http://127.0.0.1:8000",
    time_scale: Annotated[
        float,
        typer.Option(
            envvar="MAMBASERVE_BENCH_TIME_SCALE",
            help="Speed of the replay: 2 halves the time between arrivals.",
        ),
    ] = 1.0,
    limit: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_LIMIT", min=1, help="Number of requests to replay, from the first."
        ),
    ] = None,
    max_input_tokens: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_MAX_INPUT_TOKENS",
            min=1,
            help="Length to which longer prompts are cut, in tokens.",
        ),
    ] = None,
    max_output_tokens: LongestAnswer = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_BLOCK_TOKENS",
            min=1,
            max=1_000_000,
            help="Prompt tokens that one of the trace's hash_ids stands for; default: 512.",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_TIME_UNIT",
            help="Unit of the timestamps in a trace with hash_ids; default: ms.",
        ),
    ] = None,
    max_concurrency: Limit = None,
    warmup: Warmup = 0,
    model: Model = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    slo_ttft_ms: Ttft = None,
    slo_tpot_ms: Tpot = None,
    slo_e2e_ms: E2e = None,
    vocab_size: Vocab = 256,
    seed: Seed = 0,
    output: Output = "table",
    result: Result = None,
) -> None:
    """Replay a recorded trace: arrival times, lengths and, where recorded, shared prefixes."""
    options = {**locals(), "file": file.name}
    from mamba_cli.bench.trace_units import TraceUnits
    from mamba_cli.bench.traces import TraceError, parse, replay

    units = TraceUnits.of(block_tokens, time_unit)

    if not time_scale > 0:
        raise InvalidInput(f"--time-scale: must be positive, not {time_scale:g}")
    try:
        with file.open(encoding="utf-8") as lines:
            arrivals = parse(lines, units)
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}") from error
    except (TraceError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: {error}") from error

    def prompts() -> Iterator[LoadPrompt]:
        return replay(
            arrivals,
            vocab_size,
            speed=time_scale,
            limit=limit,
            max_input=max_input_tokens,
            max_output=max_output_tokens,
            block=units.block,
            seed=seed,
        )

    total = min(limit or len(arrivals), len(arrivals))
    _run(options, _load_plan(options, prompts, total, concurrency=None))


@command.command(cls=CommandWithPanels)
def dataset(
    file: Annotated[Path, typer.Argument(help="Dataset: ShareGPT's JSON, or JSON lines of messages.")],
    url: UrlOption = "http://127.0.0.1:8000",
    rate: Annotated[
        float | None,
        typer.Option(envvar="MAMBASERVE_BENCH_RATE", help="Open loop: requests per second, at random times."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_CONCURRENCY",
            min=1,
            help="Closed loop: requests in flight (default 8; without timestamps in the dataset).",
        ),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(
            envvar="MAMBASERVE_BENCH_TIME_SCALE",
            help="Speed of the replay of recorded timestamps: 2 halves the time between arrivals.",
        ),
    ] = 1.0,
    limit: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_LIMIT", min=1, help="Number of requests to send, from the first."
        ),
    ] = None,
    bytes_per_token: Annotated[
        float,
        typer.Option(
            envvar="MAMBASERVE_BENCH_BYTES_PER_TOKEN",
            min=0.1,
            help="Bytes of a recorded answer that count as one token, where a record has no output_tokens.",
        ),
    ] = 4.0,
    output_tokens: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_BENCH_OUTPUT_TOKENS",
            min=1,
            help="Length of an answer that was not recorded, in tokens.",
        ),
    ] = 128,
    max_output_tokens: LongestAnswer = None,
    max_concurrency: Limit = None,
    warmup: Warmup = 0,
    model: Model = None,
    api_key: ApiKey = None,
    timeout: Timeout = 600.0,
    slo_ttft_ms: Ttft = None,
    slo_tpot_ms: Tpot = None,
    slo_e2e_ms: E2e = None,
    seed: Annotated[
        int, typer.Option(envvar="MAMBASERVE_BENCH_SEED", help="Seed of the random arrival times.")
    ] = 0,
    output: Output = "table",
    result: Result = None,
) -> None:
    """Send the conversations of a dataset to the chat API, with its lengths and, if recorded, its times."""
    options = {**locals(), "file": file.name}
    from dataclasses import replace
    from random import Random

    from mamba_cli.bench.arrivals import poisson
    from mamba_cli.bench.dataset import AnswerLength, DatasetError, cached_before, parse, requests
    from mamba_cli.bench.prompts import at_times

    if rate is not None and concurrency is not None:
        raise InvalidInput(
            "--rate and --concurrency exclude each other: one is for the open loop, the other for the closed"
        )
    for name, number in (("--rate", rate), ("--time-scale", time_scale)):
        if number is not None and not number > 0:
            raise InvalidInput(f"{name}: must be positive, not {number:g}")
    try:
        conversations = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}") from error
    except (DatasetError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: {error}") from error
    timed = conversations[0].timestamp is not None and rate is None and concurrency is None
    if time_scale != 1.0 and not timed:
        raise InvalidInput(
            "--time-scale acts on recorded timestamps only, which the dataset lacks or an option replaces"
        )
    length = AnswerLength(bytes_per_token, output_tokens, max_output_tokens)
    prompts = requests(conversations, length, speed=time_scale)[:limit]
    if rate is not None:
        prompts = list(at_times(prompts, poisson(rate, len(prompts), Random(f"{seed}/arrivals"))))
    if rate is None and not timed:
        options["concurrency"] = concurrency or 8
    plan = _load_plan(options, lambda: iter(prompts), len(prompts), concurrency=options["concurrency"])
    _run(options, replace(plan, cached_before=cached_before))


def _run(options: dict[str, Any], plan: "LoadPlan") -> None:
    import asyncio

    from rich.console import Console

    from mamba_cli.bench.run import execute
    from mamba_cli.bench.table import render

    errors = Console(stderr=True)
    report = asyncio.run(execute(plan, errors))
    _print(report, render, options)
    _warn_of_cached_prompts(report, errors)
    _write(report, options, "mambaserve-bench", errors)
    if report["interrupted"]:
        raise typer.Exit(1)


def _load_plan(
    options: dict[str, Any],
    prompts: "Callable[[], Iterator[LoadPrompt]]",
    total: int,
    concurrency: int | None,
) -> "LoadPlan":
    from mamba_cli.bench.run import LoadPlan
    from mamba_cli.bench.samples import LatencyLimits

    def seconds(name: str) -> float | None:
        return None if options[name] is None else options[name] / 1000

    unreported = ("api_key", "output", "result", "url", "model", "plot")
    return LoadPlan(
        url=options["url"],
        prompts=prompts,
        total=total,
        concurrency=concurrency,
        limit=options["max_concurrency"],
        warmup=options["warmup"],
        model=options["model"],
        api_key=options["api_key"],
        timeout=options["timeout"],
        slo=LatencyLimits(seconds("slo_ttft_ms"), seconds("slo_tpot_ms"), seconds("slo_e2e_ms")),
        load={name: value for name, value in options.items() if name not in unreported and value is not None},
    )


def _print(
    document: dict[str, Any], table: "Callable[[dict[str, Any]], RenderableType]", options: dict[str, Any]
) -> None:
    # The report is printed before it is written, so that a failing write loses nothing.
    import json
    import sys

    from rich.console import Console

    if options["output"] == "json":
        print(json.dumps(document), file=sys.stdout, flush=True)  # noqa: T201
    else:
        Console().print(table(document))


def _warn_of_cached_prompts(report: dict[str, Any], errors: "Console") -> None:
    if before := report["tokens"]["cached_before"]:
        share = before / report["tokens"]["prompt"]
        errors.print(
            f"warning: {share:.0%} of the prompt tokens were in the server's cache before this run, perhaps "
            "from an earlier run with the same prompts, so the latencies are those of resumed prompts; use "
            "another --seed, or flush the cache",
            style="yellow", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _write(document: dict[str, Any], options: dict[str, Any], name: str, errors: "Console") -> None:
    from datetime import UTC, datetime

    from mamba_cli.bench.run import write

    path = options["result"]
    if path is None and options["output"] != "json":
        path = Path(f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    if path is not None:
        write(document, path)
        errors.print(f"report written to {path}", highlight=False, markup=False)
