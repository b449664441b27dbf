"""CPU time that one HTTP request costs the API process of an engine, or a gateway: whole answers and streams.

Run as `python -m benchmarks.http_cpu [--gateway] [--against DIR] [--peer PYTHON] [--connections N ...]`;
writes JSON and Markdown to benchmarks/results. With `--against` another checkout (with a .venv of its own) is
measured in the same rounds one after the other, so that both have the same machine; with `--peer` so is
sglang-router, another gateway, from an environment that has it. CPU time is that of all threads of the
process, from the kernel's accounts; the engine, the upstream and the client are processes of their own. Of
gateways it tells what they add to the time of a request that is alone, too, by the wall's clock.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cache.record import write
from benchmarks.http_cpu_client import TOKENS, RequestKind, ask, kinds, latency
from benchmarks.http_cpu_processes import ROOT, ProcessUnderTest, api, end_children_on_sigterm, gateway, peer

ALONE = 100
"""Requests of one round that are alone."""


@dataclass(slots=True)
class ProcessCost:
    """A process under test and what was found."""

    label: str
    process: ProcessUnderTest
    micros: dict[str, list[float]] = field(default_factory=dict)
    """CPU time of a request by kind, one number a round."""
    events: dict[str, float] = field(default_factory=dict)
    """Server-sent events of a request: fewer than tokens where the process could not keep up."""
    added: list[float] = field(default_factory=list)
    """Milliseconds that it adds to the median time of a request that is alone, one number a round."""


def cpu_seconds(pid: int) -> float:
    """Return the seconds that all threads of a process have run, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(under_test: Sequence[ProcessCost], rounds: int, kinds: Sequence[RequestKind]) -> None:
    """Run all rounds, each process in turn within each kind; a first round warms up and is not counted."""
    for number in range(rounds + 1):
        for kind in kinds:
            for one in under_test:
                before = cpu_seconds(one.process.pid)
                events = asyncio.run(ask(one.process.port, kind))
                micros = 1e6 * (cpu_seconds(one.process.pid) - before) / kind.requests
                if number:
                    one.micros.setdefault(kind.name, []).append(round(micros, 1))
                    one.events[kind.name] = round(events / kind.requests, 1)
        for one in under_test:
            if one.process.upstream is not None and number:
                direct = asyncio.run(latency(one.process.upstream, ALONE))
                through = asyncio.run(latency(one.process.port, ALONE))
                one.added.append(round(1e3 * (through - direct), 3))
        print(f"round {number} of {rounds}", file=sys.stderr)


def table(under_test: Sequence[ProcessCost], kinds: Sequence[RequestKind]) -> list[str]:
    """Return the table of all kinds of requests.

    Columns: minimum and median of each kind, the ratio of the last tree to the first, and for whole answers
    the requests per second of one core and the time that a gateway adds.
    """
    lines = ["", "| CPU time of a request, µs | tree | minimum | median | requests a second of one core |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for kind in kinds:
        for one in under_test:
            micros = one.micros[kind.name]
            least, middle = min(micros), statistics.median(micros)
            rate = f"{1e6 / middle:.0f}" if kind.whole else ""
            lines.append(f"| {kind.name} | {one.label} | {least:.0f} | {middle:.0f} | {rate} |")
    if len(under_test) > 1:
        old, new = under_test[0], under_test[-1]
        for kind in kinds:
            least = min(new.micros[kind.name]) / min(old.micros[kind.name])
            middle = statistics.median(new.micros[kind.name]) / statistics.median(old.micros[kind.name])
            beside = f"{new.label} beside {old.label}, {kind.name}"
            lines += ["", f"{beside}: {least:.2f} times by the minima, {middle:.2f} by the medians"]
    if any(one.added for one in under_test):
        lines += ["", "| Added to a request that is alone, ms (median of a round) | minimum | median |"]
        lines.append("| --- | --- | --- |")
        lines += [
            f"| {one.label} | {min(one.added):.2f} | {statistics.median(one.added):.2f} |"
            for one in under_test
            if one.added
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_cpu", description=__doc__)
    parser.add_argument("--gateway", action="store_true", help="a gateway instead of an engine's API process")
    parser.add_argument("--against", type=Path, help="another checkout, measured in the same rounds")
    parser.add_argument(
        "--peer", type=Path, help="python of an environment with sglang-router; with --gateway"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--connections", type=int, nargs="+", default=[8], help="that whole answers come over at once"
    )
    options = parser.parse_args(arguments)
    if options.peer is not None and not options.gateway:
        parser.error("--peer is a gateway: say --gateway, too")
    if min(options.connections) < 1:
        parser.error("--connections are 1 or more")
    end_children_on_sigterm()
    requests, load = kinds(options.connections), os.getloadavg()
    trees = [("this tree", ROOT)]
    if options.against is not None:
        trees.insert(0, ("the other tree", options.against.resolve()))
    with ExitStack() as stack:
        under_test = []
        if options.peer is not None:
            under_test.append(ProcessCost("sglang-router", stack.enter_context(peer(options.peer))))
        for label, tree in trees:
            running = stack.enter_context((gateway if options.gateway else api)(tree))
            under_test.append(ProcessCost(label, running))
        measure(under_test, options.rounds, requests)
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    record = {
        "tokens": TOKENS,
        "rounds": options.rounds,
        "load_average_before": [round(each, 2) for each in load],
        "python_built_with_profile": optimized,
        "commits": {label: _commit(tree) for label, tree in trees},
        "micros_per_request": {one.label: one.micros for one in under_test},
        "events_per_request": {one.label: one.events for one in under_test},
        "added_ms": {one.label: one.added for one in under_test},
    }
    before = ", ".join(f"{each:.2f}" for each in load)
    built = "with" if optimized else "without"
    lines = [f"- load average at the beginning {before}; Python built {built} profile-guided optimization"]
    write(
        "http-cpu-gateway" if options.gateway else "http-cpu-api", record, lines + table(under_test, requests)
    )


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
