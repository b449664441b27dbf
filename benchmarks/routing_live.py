"""Several engines behind gateways and a Redis, all real processes: what each way of choosing computes again.

Conversations, questions on shared documents, agents, retrieval and recorded traces, scaled down to the
shipped model: each block of a prompt becomes a few tokens. Compared with one engine that has the memory of
all. Run as `python -m benchmarks.routing_live [--trace FILE]`; nine minutes on two idle cores.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.workloads import GENERATED
from benchmarks.http_cpu_processes import end_children_on_sigterm
from benchmarks.queue_balance import LEAST, WINDOW_SECONDS, QueueBalance, over_windows
from benchmarks.redis import program
from benchmarks.routing_processes import Way, fleet

from mamba_cli.bench.traces import Arrival, parse
from mamba_cli.fleet.prompt_blocks import BLOCK, usable
from mamba_cli.fleet.workload import TraceWorkload

WAYS: tuple[Way, ...] = ("one", "load", "attention", "resumable")
Row = dict[str, Any]
USUAL = ("chat", "documents", "agents")
BLOCK_TOKENS = 16
"""Tokens per block of a trace."""
SAMPLE_SECONDS = 0.2
"""Between two looks at the engines' queues."""
LONGEST = 3500
"""Tokens of a prompt; longer ones are left out."""
WAITS = "mambaserve_requests_waiting"
RUNS = "mambaserve_requests_running"


@dataclass(slots=True)
class RoutingResult:
    """Results of one way with one workload."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    failed: int = 0
    first_tokens: list[float] = field(default_factory=list)
    queues: list[list[float]] = field(default_factory=list)
    """Requests in each engine, some times a second."""

    @property
    def computed(self) -> int:
        return self.prompt_tokens - self.cached_tokens


@cache
def tokens_of(block: int, workload: str) -> tuple[int, ...]:
    """Return the tokens of a block: equal for equal blocks of a workload, never shared by two workloads."""
    rng = Random(f"{workload} {block}")
    return tuple(rng.randrange(5, 250) for _ in range(BLOCK_TOKENS))


def scaled(arrival: Arrival, block: int, workload: str) -> tuple[list[int], int]:
    """Return the prompt and number of answered tokens of a request, in the shipped model's size."""
    prompt = [token for each in arrival.block_ids for token in tokens_of(each, workload)]
    length = max(1, round(arrival.input_tokens * BLOCK_TOKENS / block))
    return prompt[:length], max(1, min(8, round(arrival.output_tokens * BLOCK_TOKENS / block)))


class AttentionRouter:
    """Sends to the engine that was sent most of a prompt's leading pages, unless its queue is much longer."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._pages: dict[str, set[tuple[int, ...]]] = {url: set() for url in urls}
        self.open = dict.fromkeys(urls, 0)

    def choose(self, prompt: Sequence[int]) -> str:
        pages = [tuple(prompt[:end]) for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)]
        matches = {url: _leading(pages, self._pages[url]) for url in self._urls}
        least = min(self.open.values())
        near = [url for url in self._urls if self.open[url] <= 1.5 * least + 4]
        chosen = max(near, key=lambda url: (matches[url], -self.open[url]))
        self._pages[chosen].update(pages)
        return chosen


def _leading(pages: Sequence[tuple[int, ...]], known: set[tuple[int, ...]]) -> int:
    return next((n for n, page in enumerate(pages) if page not in known), len(pages))


async def send(
    session: aiohttp.ClientSession, url: str, prompt: list[int], outputs: int, outcome: RoutingResult
) -> None:
    """Send one streamed request."""
    body = {
        "model": "tiny-recall", "prompt": prompt, "max_tokens": outputs, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    begin = asyncio.get_running_loop().time()
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        reply = await answer.json()
    if answer.status != 200:
        outcome.failed += 1
        return
    outcome.first_tokens.append(asyncio.get_running_loop().time() - begin)
    outcome.prompt_tokens += reply["usage"]["prompt_tokens"]
    outcome.cached_tokens += reply["usage"]["prompt_tokens_details"]["cached_tokens"]


async def watch(session: aiohttp.ClientSession, engines: Sequence[str], outcome: RoutingResult) -> None:
    """Ask the engines for their queues."""

    async def requests(url: str) -> float:
        async with session.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((WAITS, RUNS)))

    while True:
        outcome.queues.append(list(await asyncio.gather(*map(requests, engines))))
        await asyncio.sleep(SAMPLE_SECONDS)


async def play(
    requests: Sequence[tuple[float, list[int], int]],
    engines: Sequence[str],
    choose: Callable[[Sequence[int]], str],
    router: AttentionRouter | None,
    at_once: int,
) -> RoutingResult:
    """Send each request at its second, or with `at_once`, in order, as soon as fewer are under way."""
    outcome, room = RoutingResult(), asyncio.Semaphore(at_once or len(requests))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(900)) as session:
        watching = asyncio.create_task(watch(session, engines, outcome))
        begin = asyncio.get_running_loop().time()

        async def one(at: float, prompt: list[int], outputs: int) -> None:
            if not at_once:
                await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
            async with room:
                url = choose(prompt)
                if router is not None:
                    router.open[url] += 1
                try:
                    await send(session, url, prompt, outputs, outcome)
                finally:
                    if router is not None:
                        router.open[url] -= 1

        await asyncio.gather(*(one(*request) for request in requests))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return outcome


def requests_of(workload: TraceWorkload, rate: float) -> list[tuple[float, list[int], int]]:
    """Return (second, prompt, answered tokens) of each request, in the workload's rhythm."""
    first, last = workload.arrivals[0].at, workload.arrivals[-1].at
    pace = len(workload.arrivals) / rate / max(last - first, 1e-9)
    return [
        ((arrival.at - first) * pace, *scaled(arrival, workload.block, workload.name))
        for arrival in workload.arrivals
        if arrival.input_tokens * BLOCK_TOKENS / workload.block <= LONGEST
    ]


def measure(
    workloads: Sequence[TraceWorkload], way: Way, shape: tuple[int, int, int], rate: float, at_once: int
) -> list[Row]:
    """Measure each workload in one fleet that begins with empty caches, and return a row for each.

    `shape`: engines, gateways, bytes of an engine. `rate` requests a second, or `at_once` concurrent ones.
    """
    rows: list[Row] = []
    with fleet(way, *shape) as running:
        for workload in workloads:
            requests = requests_of(workload, rate)
            router = AttentionRouter(running.engines) if way == "attention" else None
            turns = cycle(running.doors)
            choose = router.choose if router else lambda _, turns=turns: next(turns)
            outcome = asyncio.run(play(requests, running.engines, choose, router, at_once))
            running.flush()
            waits, even = sorted(outcome.first_tokens), QueueBalance.of(outcome.queues)
            longer = QueueBalance.of(over_windows(outcome.queues, round(WINDOW_SECONDS / SAMPLE_SECONDS)))
            rows.append(
                {
                    "workload": workload.name, "way": way, "requests": len(requests),
                    "failed": outcome.failed,
                    "prompt_tokens": outcome.prompt_tokens, "computed": outcome.computed,
                    "queues": asdict(even) if even else None,
                    "queues_of_windows": asdict(longer) if longer else None,
                    "answer_p50": round(waits[len(waits) // 2], 3),
                    "answer_p99": round(waits[int(0.99 * len(waits))], 3),
                }
            )  # fmt: skip
            print(line(rows[-1]), flush=True)
    return rows


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return by workload each row relative to one engine with all the memory, if that was measured."""
    one = {row["workload"]: row["computed"] for row in rows if row["way"] == "one"}
    names = list(dict.fromkeys(row["workload"] for row in rows))
    return [
        {**row, "relative": round(row["computed"] / one[name], 3) if name in one else None}
        for name in names
        for row in rows
        if row["workload"] == name
    ]


def line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table."""
    queues, longer = (
        row[name] or dict.fromkeys(("share", "mean", "p50", "p99"), "-")
        for name in ("queues", "queues_of_windows")
    )
    cells = (
        row["workload"], row["way"], row["requests"], row["failed"],
        f"{row['computed'] / row['prompt_tokens']:.1%}", row.get("relative"),
        queues["share"], queues["mean"], queues["p50"], queues["p99"], longer["p99"],
        row["answer_p50"], row["answer_p99"],
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


_COLUMNS = (
    "workload", "goes by", "requests", "failed", "computed", "to one", "share", "mean queue", "queues p50",
    "p99", "of 10 s", "answer p50 s", "p99",
)  # fmt: skip
HEAD = (f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_live", description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake-format JSON lines, beside the generated ones")
    parser.add_argument("--workload", nargs="*", choices=[make.__name__ for make in GENERATED], default=USUAL)
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS, help="how engines are chosen")
    parser.add_argument("--requests", type=int, default=200, help="the first so many of each")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second on average")
    parser.add_argument(
        "--at-once", type=int, default=0, help="instead: so many under way at all times, in their order"
    )
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--arena-bytes", type=int, default=6 << 20, help="of each engine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    end_children_on_sigterm()
    generated = (make(options.requests) for make in GENERATED if make.__name__ in options.workload)
    workloads = [
        TraceWorkload(each.name, each.block, each.arrivals[: options.requests]) for each in generated
    ]
    if options.trace is not None:
        with options.trace.open(encoding="utf-8") as lines:
            workloads.append(
                TraceWorkload(options.trace.stem, BLOCK, usable(parse(lines))[: options.requests])
            )
    shape = (options.engines, options.gateways, options.arena_bytes)
    rows = compared(
        [row for way in options.way for row in measure(workloads, way, shape, options.rate, options.at_once)]
    )
    load = f"{options.rate:g} requests a second on average"
    if options.at_once:
        load = f"{options.at_once} requests under way at all times"
    facts = [
        f"- {options.engines} engines of the shipped model with {options.arena_bytes >> 20} MiB each",
        f"- {options.gateways} gateways, one Redis {program().version}, {load}",
        f"- a block of a trace is {BLOCK_TOKENS} tokens here",
        "- to one: tokens computed, by those of one engine with the memory of all",
        f"- queues: most requests in an engine by the mean; share: of moments, with {LEAST:g} each or more",
        f"- of 10 s: p99 of their means over {WINDOW_SECONDS:g} s, one after the other",
    ]
    write("routing-live", {"rows": rows}, [*facts, "", *HEAD, *map(line, rows), ""], options.out)


if __name__ == "__main__":
    main()
