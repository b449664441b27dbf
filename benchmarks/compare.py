"""Compares two servers: the same load against both in turns, in one run, as ratios with intervals.

    python -m benchmarks.compare http://127.0.0.1:8000 http://127.0.0.1:8100
    python -m benchmarks.compare ONE TWO --rounds 9 --concurrency 16 --dataset asked.jsonl --out compare.json

A round sends the same prompts to both servers, one after the other; the order changes from round to round, so
that what else the machine does meets both alike. Every ratio is that of one round, second server to first;
the interval is that of their geometric mean.
"""

import argparse
import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.cache.record import print_and_keep
from benchmarks.machine import facts
from rich.console import Console

from mamba_cli.bench.dataset import AnswerLength, DatasetError, parse, requests
from mamba_cli.bench.prompts import LengthRange, LoadPrompt, random_prompts
from mamba_cli.bench.run import LoadPlan, execute
from mamba_cli.bench.samples import LatencyLimits
from mamba_cli.errors import CliError

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145)
"""Two-sided 95 % quantiles of Student's t for 1 to 14 degrees of freedom."""
MEASURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "output tokens/s": lambda run: run["rates"]["output_tokens_per_second"],
    "requests/s": lambda run: run["rates"]["requests_per_second"],
    "TTFT p50, ms": lambda run: _latency(run, "ttft", "p50"),
    "TTFT p99, ms": lambda run: _latency(run, "ttft", "p99"),
    "TPOT p50, ms": lambda run: _latency(run, "tpot", "p50"),
    "E2E p50, ms": lambda run: _latency(run, "e2e", "p50"),
}


def _latency(run: dict[str, Any], name: str, rank: str) -> float | None:
    statistics = run["latency_ms"][name]
    return None if statistics is None else float(statistics[rank])


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the geometric mean of second to first, and the bounds of its 95 % interval.

    With one pair the interval has no bounds: zero and infinity. All numbers must be positive.
    """
    logs = [math.log(second / first) for first, second in pairs]
    middle = fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), 0.0, math.inf
    freedom = len(logs) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 2.13
    reach = quantile * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def rows(rounds: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each measure that both servers have in each round."""
    table = []
    for name, measure in MEASURES.items():
        pairs = [(measure(one), measure(two)) for one, two in rounds]
        known = [(one, two) for one, two in pairs if one and two]
        if len(known) == len(rounds):
            middle, low, high = ratio(known)
            first, second = (fmean(side) for side in zip(*known, strict=True))
            table.append({"measure": name, "first": first, "second": second, "ratio": middle,
                          "low": low, "high": high})  # fmt: skip
    return table


def markdown(document: dict[str, Any]) -> str:
    """Return the comparison as Markdown: the servers, the machine, and a table of ratios."""
    machine, first, second = document["machine"], document["first"], document["second"]
    lines = [
        f"# Two servers, {document['date'][:10]}",
        "",
        f"- first: {first['url']}, {first['model']}; second: {second['url']}, {second['model']}",
        f"- client: {machine['processor']}, {machine['cores']} cores, {machine['system']}",
        f"- load: {document['load']}; {document['rounds']} rounds in turns",
        f"- failed requests: {first['failed']} and {second['failed']}",
        f"- prompt tokens from a cache: {_cached(first)}, {_cached(second)}",
        "",
        "| measure | first | second | second / first | 95 % interval |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        bounds = f"{row['low']:.3f} to {row['high']:.3f}" if math.isfinite(row["high"]) else "one round"
        numbers = f"{row['first']:,.1f} | {row['second']:,.1f} | {row['ratio']:.3f}"
        lines.append(f"| {row['measure']} | {numbers} | {bounds} |")
    return "\n".join([*lines, ""])


def _cached(server: dict[str, Any]) -> str:
    return f"{server['cached']} of {server['prompt']}"


def _total(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "url": runs[0]["url"],
        "model": runs[0]["model"],
        "failed": sum(run["requests"]["failed"] for run in runs),
        "cached": sum(run["tokens"]["cached"] for run in runs),
        "prompt": sum(run["tokens"]["prompt"] for run in runs),
    }


def _prompts(arguments: argparse.Namespace, number: int) -> tuple[Callable[[], Iterator[LoadPrompt]], int]:
    # Every round has prompts that no earlier round sent, so that a cache serves both servers alike.
    count = arguments.requests
    if arguments.dataset is None:
        lengths = LengthRange(arguments.input_tokens), LengthRange(arguments.output_tokens)
        seed = arguments.seed * arguments.rounds + number
        return lambda: random_prompts(count, *lengths, arguments.vocab_size, seed=seed), count
    conversations = parse(arguments.dataset.read_text(encoding="utf-8"))
    part = requests(conversations, AnswerLength(unanswered=arguments.output_tokens))
    part = part[number * count : (number + 1) * count]
    if len(part) < count:
        raise DatasetError(f"too few requests for {arguments.rounds} rounds of {count}: use fewer")
    return lambda: iter(part), count


async def compare(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run all rounds and return the document. Raises what `execute` raises."""
    loads = [_prompts(arguments, number) for number in range(arguments.rounds)]
    models = dict(zip(arguments.urls, arguments.models or (None, None), strict=True))
    options = {"requests": arguments.requests, "concurrency": arguments.concurrency}
    options |= {"dataset": arguments.dataset.name} if arguments.dataset else {
        "input_tokens": arguments.input_tokens, "output_tokens": arguments.output_tokens}  # fmt: skip
    rounds: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number, (prompts, total) in enumerate(loads):
        runs = {}
        for url in arguments.urls if number % 2 == 0 else arguments.urls[::-1]:
            console.print(f"round {number + 1} of {arguments.rounds}: {url}", highlight=False)
            plan = LoadPlan(
                url=url, prompts=prompts, total=total, concurrency=arguments.concurrency, limit=None,
                warmup=arguments.warmup if number == 0 else 0, model=models[url], api_key=arguments.api_key,
                timeout=arguments.timeout, slo=LatencyLimits(), load=options,
            )  # fmt: skip
            runs[url] = await execute(plan, console)
            if runs[url]["interrupted"]:
                raise SystemExit("interrupted: a part of a round compares nothing")
        rounds.append((runs[arguments.urls[0]], runs[arguments.urls[1]]))
    return {
        "date": rounds[0][0]["date"],
        "machine": facts(),
        "load": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items()),
        "rounds": len(rounds),
        "first": _total([one for one, _ in rounds]),
        "second": _total([two for _, two in rounds]),
        "rows": rows(rounds),
        "runs": rounds,
    }


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("urls", nargs=2, metavar="URL", help="base URLs of two OpenAI-compatible servers")
    parser.add_argument(
        "--models", nargs=2, metavar="NAME", help="models to ask for; default: the first of each"
    )
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument("--requests", type=_positive, default=32, help="requests of a round to each server")
    parser.add_argument("--concurrency", type=_positive, default=8, help="requests in flight")
    parser.add_argument("--input-tokens", type=_positive, default=512)
    parser.add_argument("--output-tokens", type=_positive, default=64)
    parser.add_argument("--dataset", type=Path, help="conversations to send in place of random prompts")
    parser.add_argument("--warmup", type=int, default=4, help="requests to each server that do not count")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--api-key", help="sent to both servers")
    parser.add_argument("--out", type=Path, help="JSON file to write; the table stands beside it as .md")
    return parser


def main() -> None:
    """Compare, print the table, and write it where `--out` says."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.urls[0].rstrip("/") == arguments.urls[1].rstrip("/"):
        parser.error("the two URLs are the same: the second would measure the cache of the first")
    try:
        document = asyncio.run(compare(arguments, Console(stderr=True)))
    except (CliError, DatasetError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print_and_keep(document, markdown(document), arguments.out)


if __name__ == "__main__":
    main()
