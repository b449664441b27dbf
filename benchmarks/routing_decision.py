"""CPU time of one choice of an engine, with what a busy gateway has.

An index of a million prefixes that engines go on publishing to, prompts that several of them can resume,
reports meanwhile. Run as `python -m benchmarks.routing_decision`; a minute.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from benchmarks.cache.record import RESULTS, write

from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import NoCandidate
from mamba_gateway.routing.router import Router
from mamba_prefix.messages import Change, Snapshot
from mamba_prefix.page_chain import Hashes, PageChain
from mamba_prefix.page_rungs import rungs
from mamba_prefix.prefix_index import ENTRY, PrefixIndex

PAGE = 16
"""Tokens."""
STEM_PAGES = 64
HOLDERS = 6
"""Engines that have some of a stem, at most; each to a depth of its own."""
STATES = 4
"""Pages of attention for each of which there is a state too, one in so many."""
REPORT_EVERY, CHANGE_EVERY, CHANGED = 8, 20, 8
"""Prompts between two reports, and between two batches of an engine; hashes in a batch."""


class BusyGateway:
    """A router before `endpoints` engines, whose index knows `entries` prefixes. All follows a seed."""

    def __init__(self, endpoints: int, entries: int, stems: int = 400, seed: int = 0) -> None:
        self.rng = Random(seed)
        self._random = np.random.default_rng(seed)
        self.names = [f"e{n}" for n in range(endpoints)]
        self.pool = Pool()
        self.pool.set_targets(Target(f"http://{name}", name) for name in self.names)
        for name in self.names:
            self.report(name)
        self.index = PrefixIndex()
        self.index.state = "following"
        self._stems = self._random.integers(0, 50_000, (stems, STEM_PAGES * PAGE), np.int32)
        self._fill(entries)
        self.router = Router(self.pool, GatewayMetrics(self.pool.snapshot), self.rng, index=self.index)

    def _fill(self, entries: int) -> None:
        chain = PageChain(PAGE, "f")
        states: dict[str, list[Hashes]] = {name: [] for name in self.names}
        pages: dict[str, list[Hashes]] = {name: [] for name in self.names}
        rung = rungs(0, STEM_PAGES) - 1
        for stem in self._stems:
            hashes = chain.hashes(stem, "")
            for name in self.rng.sample(self.names, min(len(self.names), self.rng.randint(1, HOLDERS))):
                depth = self.rng.randint(1, STEM_PAGES)
                held = rung[rung < depth]
                pages[name].append(hashes[held])
                states[name].append(hashes[held[STATES - 1 :: STATES]])
        held_by_some = np.unique(np.concatenate([each for name in self.names for each in pages[name]]))
        rest = max(0, entries - len(held_by_some))
        for at, name in enumerate(self.names):
            others = self._hashes(rest * (at + 1) // len(self.names) - rest * at // len(self.names))
            pages[name].append(others)
            states[name].append(others[::STATES])
            snapshot = Snapshot(
                name, "i", 1, 0, "f", PAGE, _packed(np.concatenate(states[name])),
                pages=np.concatenate(pages[name]).tobytes(),
            )  # fmt: skip
            self.index.take_snapshot(snapshot)

    def _hashes(self, count: int) -> Hashes:
        return self._random.integers(1, 1 << 64, count, np.uint64)

    def report(self, name: str) -> None:
        """Process the report of a probe of the engine."""
        report = ProbeReport(
            True, models=({"id": "m"},), running=self.rng.randrange(9), room=1e6,
            speed=EngineSpeed(self.rng.uniform(1.8e4, 2.2e4), 1e-6, 0.01),
            prompt_tokens_waiting=self.rng.random() * 1e4,
        )  # fmt: skip
        self.pool.report(f"http://{name}", report)

    def change(self, name: str, seq: int) -> None:
        """Publish a batch of changes of the engine."""
        gained = self._hashes(CHANGED)
        batch = Change(
            name, "i", 1, seq, False, _packed(gained[::STATES]), b"", pages_gained=gained.tobytes()
        )  # fmt: skip
        self.index.take_change(batch)

    def prompts(self, count: int) -> Iterator[PromptPrefix]:
        """Yield prompts of 1 to 64 pages that share most of their beginning with others."""
        for n in range(count):
            stem = self._stems[self.rng.randrange(len(self._stems))]
            ids = stem[: PAGE * self.rng.randint(1, STEM_PAGES)].copy()
            ids[-self.rng.randint(0, len(ids) // 2) :] += 1 + n
            yield PromptPrefix.of(ids)


def _packed(hashes: Hashes) -> bytes:
    entries = np.zeros(len(hashes), ENTRY)
    entries["hash"] = hashes
    return entries.tobytes()


def measure(endpoints: int, entries: int, decisions: int) -> dict[str, Any]:
    """Measure the microseconds of CPU of a decision, of its index lookup, and of the bookkeeping."""
    gateway = BusyGateway(endpoints, entries)
    pool, router, index = gateway.pool, gateway.router, gateway.index
    micros: dict[str, list[float]] = {"decision": [], "lookup": [], "sent": []}
    hits = 0
    for n, prompt in enumerate(gateway.prompts(2 * decisions)):
        name = gateway.names[n // REPORT_EVERY % endpoints]
        if n % REPORT_EVERY == 0:
            gateway.report(name)
        if n % CHANGE_EVERY == 0:
            turn = n // CHANGE_EVERY
            gateway.change(gateway.names[turn % endpoints], turn // endpoints + 1)
        if n % 2:  # of a prompt that is not decided for: nothing of it is in the processor's caches
            _timed(micros["lookup"], lambda: index.depths(prompt.token_ids, prompt.salt))  # noqa: B023
            continue
        record = _timed(micros["decision"], lambda: router.decide("m", prompt))  # noqa: B023
        assert not isinstance(record, NoCandidate)
        hits += len(record.published.resumable)
        ticket = _timed(micros["sent"], lambda: router.sent(record, prompt))  # noqa: B023
        pool.end(record.decision.endpoint.url, ticket)
    return {
        "endpoints": endpoints,
        "entries": index.pages,
        "bytes_per_entry": round(index.bytes / index.pages, 1),
        "hits": round(hits / len(micros["decision"]), 2),
        **{name: _quantiles(each) for name, each in micros.items()},
    }


def _timed(into: list[float], call: Callable[[], Any]) -> Any:
    begin = time.thread_time()
    result = call()
    into.append(1e6 * (time.thread_time() - begin))
    return result


def _quantiles(taken: list[float]) -> dict[str, float]:
    taken.sort()
    return {"p50": round(taken[len(taken) // 2], 1), "p99": round(taken[int(0.99 * len(taken))], 1)}


HEAD = (
    "| engines | prefixes | bytes each | can resume | choice µs p50 | p99 | lookup | p99 | sent | p99 |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table."""
    parts = [row[name][which] for name in ("decision", "lookup", "sent") for which in ("p50", "p99")]
    cells = (row["endpoints"], f"{row['entries']:,}", row["bytes_per_entry"], row["hits"], *parts)
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_decision", description=__doc__)
    parser.add_argument("--endpoints", type=int, nargs="+", default=(4, 16, 64))
    parser.add_argument("--entries", type=int, default=1_000_000, help="prefixes that the index knows")
    parser.add_argument("--decisions", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows = [measure(endpoints, options.entries, options.decisions) for endpoints in options.endpoints]
    facts = [
        f"- {options.decisions} choices for prompts of 1 to {STEM_PAGES} pages of {PAGE} tokens",
        "- can resume: engines that have a state of a prompt, on average",
        "- lookup: in the index, part of the decision; sent: what is remembered of it afterwards",
        f"- an engine reports after each {REPORT_EVERY} decisions, and publishes after each {CHANGE_EVERY}",
    ]
    write("routing-decision", {"rows": rows}, [*facts, "", *HEAD, *map(line, rows), ""], options.out)


if __name__ == "__main__":
    main()
