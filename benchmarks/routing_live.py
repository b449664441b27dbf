"""Several engines behind gateways and a Redis, all real processes: what each way of choosing computes again.

Conversations, questions on shared documents, agents, retrieval and recorded traces, scaled down to the
shipped model: each block of a prompt becomes a few tokens. Compared with one engine that has the memory of
all. Run as `python -m benchmarks.routing_live [--trace FILE]`; nine minutes on two idle cores.
"""

import argparse
import asyncio
import contextlib
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal

import aiohttp
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.workloads import GENERATED
from benchmarks.engine import running_command
from benchmarks.http_cpu_processes import end_children_on_sigterm
from benchmarks.redis import running_redis
from benchmarks.routing import queue_imbalance

from mamba_cli.bench.traces import Arrival, parse
from mamba_cli.fleet.prompt_blocks import BLOCK, usable
from mamba_cli.fleet.workload import Workload
from mamba_cli.local.ports import free_ports

Way = Literal["one", "load", "attention", "resumable"]
"""One engine with all the memory; by load alone; to the engine with most attention pages of the prompt, as
the sender remembers them; the product as it is."""
WAYS: tuple[Way, ...] = ("one", "load", "attention", "resumable")
Row = dict[str, Any]
USUAL = ("chat", "documents", "agents")
MODEL = "builtin://tiny-recall"
BLOCK_TOKENS = 16
"""That a block of a trace becomes."""
LONGEST = 3500
"""Tokens of a prompt; longer ones are left out."""
WAITS = "mambaserve_requests_waiting"
RUNS = "mambaserve_requests_running"


@dataclass(slots=True)
class Outcome:
    """What one way did with one workload."""

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
    """The tokens of a block; equal ones of a workload have equal tokens, and no two workloads share any."""
    rng = Random(f"{workload} {block}")
    return tuple(rng.randrange(5, 250) for _ in range(BLOCK_TOKENS))


def scaled(arrival: Arrival, block: int, workload: str) -> tuple[list[int], int]:
    """Prompt and number of answered tokens of a request, in the shipped model's size."""
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
        known = {url: _leading(pages, self._pages[url]) for url in self._urls}
        least = min(self.open.values())
        near = [url for url in self._urls if self.open[url] <= 1.5 * least + 4]
        chosen = max(near, key=lambda url: (known[url], -self.open[url]))
        self._pages[chosen].update(pages)
        return chosen


def _leading(pages: Sequence[tuple[int, ...]], known: set[tuple[int, ...]]) -> int:
    return next((n for n, page in enumerate(pages) if page not in known), len(pages))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where its processes are."""

    engines: list[str]
    admins: list[str]
    """The engines' admin servers."""
    doors: list[str]
    """What requests are sent to, in turn."""

    def flush(self) -> None:
        """The engines forget all prompts."""
        for url in self.admins:
            asked = urllib.request.Request(f"{url}/admin/flush_cache", method="POST")
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()


@contextlib.contextmanager
def fleet(way: Way, engines: int, gateways: int, arena: int) -> Iterator[Fleet]:
    """Processes, ready."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        one = way == "one"
        admins = free_ports(1 if one else engines)
        urls = [
            stack.enter_context(
                running_command(
                    "serve", "--model", MODEL, "--admin-port", str(admin), "--device", "cpu",
                    "--arena-bytes", str(engines * arena if one else arena), "--redis-url", redis,
                    variables={"OMP_NUM_THREADS": "1"},
                )
            )
            for admin in admins
        ]  # fmt: skip
        admin_urls = [f"http://127.0.0.1:{admin}" for admin in admins]
        if way == "attention":
            yield Fleet(urls, admin_urls, urls)
            return
        backends = [word for url in urls for word in ("--backend", url)]
        weight = ("--prefix-weight", "0") if way == "load" else ()
        yield Fleet(
            urls,
            admin_urls,
            [
                stack.enter_context(
                    running_command(
                        "gateway",
                        *backends,
                        "--redis-url",
                        redis,
                        "--prefix-index-scope",
                        "tiny-recall",
                        *weight,
                    )
                )
                for _ in range(gateways)
            ],
        )


async def send(
    session: aiohttp.ClientSession, url: str, prompt: list[int], outputs: int, outcome: Outcome
) -> None:
    """One streamed request."""
    body = {
        "model": "tiny-recall", "prompt": prompt, "max_tokens": outputs, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    begin = asyncio.get_running_loop().time()
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        found = await answer.json()
    if answer.status != 200:
        outcome.failed += 1
        return
    outcome.first_tokens.append(asyncio.get_running_loop().time() - begin)
    outcome.prompt_tokens += found["usage"]["prompt_tokens"]
    outcome.cached_tokens += found["usage"]["prompt_tokens_details"]["cached_tokens"]


async def watch(session: aiohttp.ClientSession, engines: Sequence[str], outcome: Outcome) -> None:
    """Ask the engines for their queues."""

    async def requests(url: str) -> float:
        async with session.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((WAITS, RUNS)))

    while True:
        outcome.queues.append(list(await asyncio.gather(*map(requests, engines))))
        await asyncio.sleep(0.5)


async def play(
    requests: Sequence[tuple[float, list[int], int]],
    engines: Sequence[str],
    choose: Callable[[Sequence[int]], str],
    router: AttentionRouter | None,
) -> Outcome:
    """Each request at its second."""
    outcome = Outcome()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(900)) as session:
        watching = asyncio.create_task(watch(session, engines, outcome))
        begin = asyncio.get_running_loop().time()

        async def one(at: float, prompt: list[int], outputs: int) -> None:
            await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
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


def requests_of(workload: Workload, rate: float) -> list[tuple[float, list[int], int]]:
    """(second, prompt, answered tokens) of each: in the workload's rhythm, so many a second on average."""
    first, last = workload.arrivals[0].at, workload.arrivals[-1].at
    pace = len(workload.arrivals) / rate / max(last - first, 1e-9)
    return [
        ((arrival.at - first) * pace, *scaled(arrival, workload.block, workload.name))
        for arrival in workload.arrivals
        if arrival.input_tokens * BLOCK_TOKENS / workload.block <= LONGEST
    ]


def measure(workloads: Sequence[Workload], way: Way, shape: tuple[int, int, int], rate: float) -> list[Row]:
    """One row for each workload, by one fleet that begins each with empty caches. `shape`: engines, gateways,
    bytes of an engine."""
    rows: list[Row] = []
    with fleet(way, *shape) as running:
        for workload in workloads:
            requests = requests_of(workload, rate)
            router = AttentionRouter(running.engines) if way == "attention" else None
            turns = cycle(running.doors)
            choose = router.choose if router else lambda _, turns=turns: next(turns)
            outcome = asyncio.run(play(requests, running.engines, choose, router))
            running.flush()
            waits = sorted(outcome.first_tokens)
            rows.append(
                {
                    "workload": workload.name, "way": way, "requests": len(requests),
                    "failed": outcome.failed,
                    "prompt_tokens": outcome.prompt_tokens, "computed": outcome.computed,
                    "imbalance_p99": queue_imbalance(outcome.queues),
                    "answer_p50": round(waits[len(waits) // 2], 3),
                    "answer_p99": round(waits[int(0.99 * len(waits))], 3),
                }
            )  # fmt: skip
            print(line(rows[-1]), flush=True)
    return rows


def compared(rows: Sequence[Row]) -> list[Row]:
    """By workload, each beside one engine with all the memory, where that was measured."""
    one = {row["workload"]: row["computed"] for row in rows if row["way"] == "one"}
    names = list(dict.fromkeys(row["workload"] for row in rows))
    return [
        {**row, "relative": round(row["computed"] / one[name], 3) if name in one else None}
        for name in names
        for row in rows
        if row["workload"] == name
    ]


def line(row: dict[str, Any]) -> str:
    """One row of the Markdown table."""
    shown = (
        row["workload"], row["way"], row["requests"], row["failed"],
        f"{row['computed'] / row['prompt_tokens']:.1%}", row.get("relative"), row["imbalance_p99"],
        row["answer_p50"], row["answer_p99"],
    )  # fmt: skip
    return f"| {' | '.join(map(str, shown))} |"


HEAD = (
    "| workload | goes by | requests | failed | computed | to one | imbalance p99 | answer p50 s | p99 |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_live", description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake-format JSON lines, beside the generated ones")
    parser.add_argument("--workload", nargs="*", choices=[make.__name__ for make in GENERATED], default=USUAL)
    parser.add_argument("--way", nargs="+", choices=WAYS, default=WAYS, help="how engines are chosen")
    parser.add_argument("--requests", type=int, default=200, help="the first so many of each")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second on average")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--arena-bytes", type=int, default=6 << 20, help="of each engine")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    end_children_on_sigterm()
    made = (make(asked.requests) for make in GENERATED if make.__name__ in asked.workload)
    workloads = [Workload(each.name, each.block, each.arrivals[: asked.requests]) for each in made]
    if asked.trace is not None:
        with asked.trace.open(encoding="utf-8") as lines:
            workloads.append(Workload(asked.trace.stem, BLOCK, usable(parse(lines))[: asked.requests]))
    shape = (asked.engines, asked.gateways, asked.arena_bytes)
    rows = compared([row for way in asked.way for row in measure(workloads, way, shape, asked.rate)])
    facts = [
        f"- {asked.engines} engines of the shipped model with {asked.arena_bytes >> 20} MiB each",
        f"- {asked.gateways} gateways, one Redis, {asked.rate:g} requests a second on average",
        f"- a block of a trace is {BLOCK_TOKENS} tokens here",
        "- to one: tokens computed, by those of one engine with the memory of all",
        "- imbalance: the longest queue by the mean, where the mean is at least 4",
    ]
    write("routing-live", {"rows": rows}, [*facts, "", *HEAD, *map(line, rows), ""], asked.out)


if __name__ == "__main__":
    main()
