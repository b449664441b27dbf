"""Rates of the store of bundles: verified reads beside plain ones, puts, lookups and a start.

Run as `python -m benchmarks.tier_store [--directory DIR]`; writes JSON and Markdown to benchmarks/results.
Each read of the store takes turns with `readinto` of the same bytes, in the same order and into the same
buffers, both from the page cache. On a busy machine the ratio of processor time says more than the ratio of
seconds.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
from benchmarks.cache.record import write

from mamba_prefix.page_chain import Tokens
from mamba_tier import bundle_store
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.items import Item, Record
from mamba_tier.outcomes import Match, PutOutcome, ReadOutcome

TURNS = 21
MEBI = 1 << 20
BUNDLES = {
    "state of 100 MiB, 256 KiB a page, 4,096 tokens": (100 * MEBI, 256 << 10, 4096),
    "state of 25 MiB, 64 KiB a page, 4,096 tokens": (25 * MEBI, 64 << 10, 4096),
    "state of 25 MiB, 16 KiB a page, 16,384 tokens": (25 * MEBI, 16 << 10, 16_384),
    "state of 100 MiB, no pages": (100 * MEBI, 0, 4096),
    "state of 8 MiB, no pages": (8 * MEBI, 0, 4096),
}


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a call."""
    began, worked = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - worked


def plain_read(directory: Path, items: Sequence[Item], state: memoryview, pages: memoryview) -> None:
    """Read the payloads of the files of a bundle."""
    place = 0
    for item in items:
        with open(directory / str(item.place), "rb", buffering=0) as file:
            rest = os.fstat(file.fileno()).st_size
            header = int.from_bytes(file.read(16)[12:16], "little")
            file.seek(header)
            rest -= header
            if isinstance(item, Record):
                assert file.readinto(state) == len(state)
                rest -= len(state)
            if rest:
                assert file.readinto(pages[place : place + rest]) == rest
                place += rest


def buffer_of(array: npt.NDArray[np.uint8]) -> memoryview:
    return memoryview(array)  # type: ignore[arg-type] # numpy's stubs do not say that arrays are buffers


def bundle(shape: BundleShape, tokens: int) -> tuple[Tokens, memoryview, memoryview]:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 255, shape.state_bytes, np.uint8)
    pages = rng.integers(0, 255, shape.pages_bytes(tokens), np.uint8)
    return rng.integers(0, 30_000, tokens).astype(np.int32), buffer_of(state), buffer_of(pages)


def reads(
    store: BundleStore, match: Match, plain: Callable[[memoryview, memoryview], None], helpers: int
) -> dict[str, float]:
    """Compare reads of the store with plain ones, in turns."""
    state = buffer_of(np.ones(match.state_bytes, np.uint8))
    pages = buffer_of(np.ones(match.pages_bytes, np.uint8))
    bundle_store.HELPERS = helpers
    wall, worked, rates, plain_rates = [], [], [], []
    for _ in range(TURNS):
        seconds, processor = timed(lambda: _valid(store.read(match, [state], [pages])))
        plain_seconds, plain_processor = timed(lambda: plain(state, pages))
        wall.append(plain_seconds / seconds)
        worked.append(plain_processor / processor)
        rates.append(match.total_bytes / seconds / 1e9)
        plain_rates.append(match.total_bytes / plain_seconds / 1e9)
    return {
        "gb_per_second": statistics.median(rates),
        "plain_gb_per_second": statistics.median(plain_rates),
        "ratio": statistics.median(wall),
        "best_ratio": max(rates) / max(plain_rates),
        "processor_ratio": statistics.median(worked),
    }


def _valid(outcome: ReadOutcome) -> None:
    assert outcome is ReadOutcome.VALID


def plain_copy(sources: Sequence[memoryview], *targets: memoryview) -> None:
    """Copy a bundle within memory."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def measure(directory: Path | None, shape: BundleShape, tokens: int) -> dict[str, dict[str, float]]:
    """Measure one bundle in the tier on disk, with and without a helper, or in host memory."""
    token_ids, state, pages = bundle(shape, tokens)
    total = len(state) + len(pages)
    host, disk = (0, 2 << 30) if directory else (2 << 30, 0)
    store = BundleStore(shape, StoreSettings(host, disk, directory, staging_bytes=total + MEBI))
    put_seconds, _ = timed(lambda: _accepted(store.put(token_ids, "", [state], [pages])))
    stored_seconds, _ = timed(lambda: store.drain(600))
    match = store.lookup(token_ids, "")
    assert match is not None
    plain = (
        partial(plain_copy, (state, pages))
        if directory is None
        else partial(plain_read, directory, match.items)
    )
    out = {}
    for helpers in (0, 1) if directory else (0,):
        key = f"{'disk' if directory else 'host'}, {'2 threads' if helpers else '1 thread'}"
        out[key] = reads(store, match, plain, helpers) | {
            "put_gb_per_second": total / put_seconds / 1e9,
            "stored_gb_per_second": total / (put_seconds + stored_seconds) / 1e9,
        }
    store.close()
    return out


def _accepted(outcome: PutOutcome) -> None:
    assert outcome is PutOutcome.ACCEPTED


def many_records(directory: Path, records: int) -> dict[str, float]:
    """Measure a start over many small records, and lookups of long prompts in them."""
    shape = BundleShape("model", "layout", 16, 4000, 64)
    settings = StoreSettings(0, 1 << 30, directory, staging_bytes=256 * MEBI)
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, 30_000, 16_384).astype(np.int32)
    store = BundleStore(shape, settings)
    state = memoryview(bytes(shape.state_bytes))
    for number in range(records):
        token_ids = prompt.copy()[: 16 * (1 + number % 64)]
        token_ids[0] = number
        pages = memoryview(bytes(shape.pages_bytes(len(token_ids))))
        _accepted(store.put(token_ids, "", [state], [pages]))
        if not number % 100:
            store.drain(600)
    store.drain(600)
    store.close()
    opened = []
    start_seconds, start_processor = timed(lambda: opened.append(BundleStore(shape, settings)))
    found = prompt.copy()
    found[0] = 63
    lookups = [timed(lambda: opened[0].lookup(found, ""))[0] for _ in range(200)]
    misses = [timed(lambda: opened[0].lookup(prompt, "x"))[0] for _ in range(200)]
    opened[0].close()
    files = sum(1 for path in directory.iterdir() if path.suffix == ".bundle")
    return {
        "files": files,
        "start_milliseconds": 1e3 * start_seconds,
        "microseconds_a_file": 1e6 * start_seconds / files,
        "processor_microseconds_a_file": 1e6 * start_processor / files,
        "lookup_microseconds_16384_tokens": 1e6 * statistics.median(lookups),
        "miss_microseconds_16384_tokens": 1e6 * statistics.median(misses),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_store", description=__doc__)
    parser.add_argument("--directory", type=Path, default=None, help="where files are written; default: /tmp")
    parser.add_argument("--records", type=int, default=5000)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    record: dict[str, Any] = {"bundles": {}}
    columns = ("ratio", "best_ratio", "processor_ratio", "gb_per_second", "plain_gb_per_second",
               "put_gb_per_second", "stored_gb_per_second")  # fmt: skip
    lines = [
        "",
        f"- each bundle is read {TURNS} times, in turns with `readinto` of the files or a copy in memory",
        "- ratio: plain seconds to seconds of the store, which also verifies; best: of the fastest of each",
        "",
        f"| bundle | tier | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"| --- | --- |{' ---: |' * len(columns)}",
    ]
    for name, (state_bytes, page_bytes, tokens) in BUNDLES.items():
        shape = BundleShape("model", "layout", 16, state_bytes, page_bytes)
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            rows = measure(Path(directory), shape, tokens) | measure(None, shape, tokens)
        record["bundles"][name] = {"shape": asdict(shape), "tokens": tokens, "tiers": rows}
        lines += [
            f"| {name} | {tier} | {' | '.join(f'{row[column]:.2f}' for column in columns)} |"
            for tier, row in rows.items()
        ]
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        record["many"] = many_records(Path(directory), options.records)
    lines += ["", "| a start and lookups | |", "| --- | ---: |"]
    lines += [f"| {key.replace('_', ' ')} | {number:,.1f} |" for key, number in record["many"].items()]
    write("tier-store", record, lines)


if __name__ == "__main__":
    main()
