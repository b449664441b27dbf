"""`mambaserve bench serve` and `bench trace`: send load to a URL and report latencies and goodput."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.trace_units import TimeUnit
from mamba_cli.errors import InvalidInput
from mamba_cli.plain_help import CommandWithPanels

command = typer.Typer(name="bench", help="Measure an endpoint under load.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(envvar="MAMBASERVE_URL", help="Base URL of an OpenAI-compatible server.")]
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
        help="JSON file to write; default: mambaserve-bench-TIME.json in the current directory, and no file "
        "with --output json.",
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
    input_tokens: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_BENCH_INPUT_TOKENS", min=1, help="Mean length of a prompt, in tokens."
        ),
    ] = 512,
    output_tokens: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_BENCH_OUTPUT_TOKENS", min=1, help="Mean length of an answer, in tokens."
        ),
    ] = 128,
    spread: Annotated[
        float,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SPREAD",
            min=0,
            max=1,
            help="Relative deviation of the lengths from their means, at most.",
        ),
    ] = 0.0,
    shared_prefix: Annotated[
        float,
        typer.Option(
            envvar="MAMBASERVE_BENCH_SHARED_PREFIX",
            min=0,
            max=1,
            help="Share of each prompt that all prompts of its group begin with.",
        ),
    ] = 0.0,
    prefix_groups: Annotated[
        int,
        typer.Option(
            envvar="MAMBASERVE_BENCH_PREFIX_GROUPS", min=1, help="Number of groups, each with its own prefix."
        ),
    ] = 1,
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
    from dataclasses import replace
    from random import Random

    from mamba_cli.bench.arrivals import constant, poisson
    from mamba_cli.bench.prompts import LengthRange, random_prompts

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
        return (replace(prompt, at=time) for prompt, time in zip(unscheduled, times, strict=True))

    if rate is None:
        options["concurrency"] = concurrency or 8
    _run(options, prompts, requests, concurrency=options["concurrency"])


@command.command(cls=CommandWithPanels)
def trace(
    file: Annotated[Path, typer.Argument(help="Trace: Azure CSV or Mooncake JSON lines.")],
    url: Annotated[
        str, typer.Option(envvar="MAMBASERVE_URL", help="Base URL of an OpenAI-compatible server.")
    ] = "http://127.0.0.1:8000",
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
    max_output_tokens: Annotated[
        int | None,
        typer.Option(
            envvar="MAMBASERVE_BENCH_MAX_OUTPUT_TOKENS",
            min=1,
            help="Length to which longer answers are cut, in tokens.",
        ),
    ] = None,
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

    _run(options, prompts, min(limit or len(arrivals), len(arrivals)), concurrency=None)


def _run(
    options: dict[str, Any],
    prompts: "Callable[[], Iterator[LoadPrompt]]",
    total: int,
    concurrency: int | None,
) -> None:
    import asyncio
    import json
    import sys
    from datetime import UTC, datetime

    from rich.console import Console

    from mamba_cli.bench.run import LoadPlan, execute, write
    from mamba_cli.bench.samples import LatencyLimits
    from mamba_cli.bench.table import render

    def seconds(name: str) -> float | None:
        return None if options[name] is None else options[name] / 1000

    unreported = ("api_key", "output", "result", "url", "model")
    plan = LoadPlan(
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
    errors = Console(stderr=True)
    report = asyncio.run(execute(plan, errors))
    path = options["result"]
    if path is None and options["output"] != "json":
        path = Path(f"mambaserve-bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
    # The report is printed before it is written, so that a failing write loses nothing.
    if options["output"] == "json":
        print(json.dumps(report), file=sys.stdout, flush=True)  # noqa: T201
    else:
        Console().print(render(report))
    if before := report["tokens"]["cached_before"]:
        share = before / report["tokens"]["prompt"]
        errors.print(
            f"warning: {share:.0%} of the prompt tokens were in the server's cache before this run, perhaps "
            "from an earlier run with the same prompts, so the latencies are those of resumed prompts; use "
            "another --seed, or flush the cache",
            style="yellow", highlight=False, soft_wrap=True,
        )  # fmt: skip
    if path is not None:
        write(report, path)
        errors.print(f"report written to {path}", highlight=False, markup=False)
    if report["interrupted"]:
        raise typer.Exit(1)
