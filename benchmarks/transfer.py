"""Throughput of states between two processes, beside a plain Python socket in the same run.

Run as `python -m benchmarks.transfer [--rounds N]`; writes JSON and Markdown to benchmarks/results. A source
process has the arena of a published model and serves it by both ways in turn: as bundles with checksums, and
as the same number of bytes through `sendall`. Each round opens a connection of its own, as a fetch does.
"""

import argparse
import json
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cache.record import write

from mamba_planner.families import model_config_from_hf
from mamba_transfer import (
    Address,
    HotPrefix,
    Lease,
    OpenExport,
    Peer,
    StateLayout,
    TransferClient,
    TransferServer,
    Verdict,
    Wanted,
    arena_buffers,
)

CONFIGS = Path(__file__).parents[1] / "tests/golden/configs"
PAGE_SIZE = 64
INCARNATION = "bench"


class Shape(NamedTuple):
    """One kind of bundle."""

    model: str
    state_dtype: str
    tokens: int
    """Tokens whose pages travel."""


SHAPES = (
    Shape("granite-4.0-h-350m", "float32", 4096),
    Shape("nemotron-3-nano-30b-a3b", "bfloat16", 8192),
    Shape("granite-4.0-h-tiny", "float32", 8192),
    Shape("nemotron-h-8b", "float32", 2048),
)


class Bundle:
    """The memory of one bundle in an arena: the state in slot 1, and pages in two runs."""

    def __init__(self, shape: Shape, seed: int | None) -> None:
        """Take the memory and touch all of it; `seed` = random bytes."""
        model = model_config_from_hf(json.loads((CONFIGS / f"{shape.model}.json").read_text()))
        self.layout = StateLayout.of(
            model,
            fingerprint=shape.model,
            state_dtype=shape.state_dtype,
            dtype="bfloat16",
            page_size=PAGE_SIZE,
        )
        pages = shape.tokens // PAGE_SIZE
        first = 2 * self.layout.slab_bytes // self.layout.page_bytes
        numbers = [first + page + (page > pages // 2) for page in range(pages)]
        size = (numbers[-1] + 1) * self.layout.page_bytes
        # A whole byte array is written, so that the kernel has given each of its pages.
        self.arena = bytearray(random.Random(seed).randbytes(size) if seed else b"\1" * size)
        self.buffers = arena_buffers(memoryview(self.arena), self.layout, 1, numbers)
        self.length = sum(buffer.nbytes for buffer in self.buffers)
        self.wanted = Wanted(depth=shape.tokens, export="bench")

    def open(self, wanted: Wanted) -> OpenExport:
        """Return the export, which nobody writes to."""
        return OpenExport(wanted.depth, wanted.base, self.buffers, Lease("bench", 30, time.monotonic))

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        """Keep the memory: every round reads it again."""

    def hottest(self, count: int) -> Sequence[HotPrefix]:
        return []

    def release(self, export: str) -> bool:
        return False

    def renew(self, export: str) -> bool:
        """Return that the export lives."""
        return True


def source(shape: Shape, pipe: Pipe) -> None:
    """Serve the bundle both ways until the pipe closes; the process of the source."""
    bundle = Bundle(shape, seed=1)
    server = TransferServer(bundle.layout, INCARNATION, bundle)
    plain = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_send_plainly, args=(plain, memoryview(bundle.arena)[: bundle.length]))
    thread.daemon = True
    thread.start()
    pipe.send((str(server.start("127.0.0.1", 0)), plain.getsockname()[1]))
    pipe.poll(None)


def _send_plainly(listener: socket.socket, memory: memoryview) -> None:
    while True:
        end, _ = listener.accept()
        with end:
            end.recv(1)
            end.sendall(memory)


@contextmanager
def running(shape: Shape) -> Iterator[tuple[Peer, int]]:
    """Run the source in a process of its own; yield where it serves bundles, and its plain port."""
    here, there = get_context("fork").Pipe()
    process = get_context("fork").Process(target=source, args=(shape, there), daemon=True)
    process.start()
    try:
        address, port = here.recv()
        yield Peer(Address.parse(address), INCARNATION), port
    finally:
        process.kill()
        process.join()


def plain_seconds(port: int, memory: memoryview) -> float:
    """Return the seconds of one connection, a request of a byte, and all bytes through `recv_into`."""
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.sendall(b"g")
        while memory.nbytes:
            memory = memory[end.recv_into(memory, memory.nbytes, socket.MSG_WAITALL) :]
    return time.perf_counter() - begun


def bundle_seconds(client: TransferClient, peer: Peer, bundle: Bundle) -> float:
    """Return the seconds of one fetch. Raises RuntimeError if it is not VALID."""
    begun = time.perf_counter()
    outcome = client.fetch(peer, bundle.wanted, bundle.buffers, deadline=time.monotonic() + 60)
    seconds = time.perf_counter() - begun
    if outcome.verdict is not Verdict.VALID:
        raise RuntimeError(f"a fetch ended {outcome.verdict}: {outcome.detail}")
    return seconds


def measure(shape: Shape, rounds: int) -> dict[str, Any]:
    """Return the throughput of both ways, whose rounds take turns."""
    target = Bundle(shape, seed=None)
    client = TransferClient(target.layout)
    with running(shape) as (peer, port):
        ways: dict[str, Callable[[], float]] = {
            "plain": lambda: plain_seconds(port, memoryview(target.arena)[: target.length]),
            "bundle": lambda: bundle_seconds(client, peer, target),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 2):
            for name, way in ways.items():
                took = way()
                if number >= 2:  # the first ones grow the buffers of the kernel
                    seconds[name].append(took)
    gigabytes = {name: target.length / statistics.median(times) / 1e9 for name, times in seconds.items()}
    pairs = [plain / bundle for plain, bundle in zip(seconds["plain"], seconds["bundle"], strict=True)]
    return {
        "state_mib": round(target.layout.state_bytes / 2**20, 1),
        "pages_mib": round((target.length - target.layout.state_bytes) / 2**20, 1),
        "plain_gb_per_second": round(gigabytes["plain"], 2),
        "bundle_gb_per_second": round(gigabytes["bundle"], 2),
        "ratio_of_medians": round(gigabytes["bundle"] / gigabytes["plain"], 2),
        "median_ratio_of_pairs": round(statistics.median(pairs), 2),
        "best_ratio": round(min(seconds["plain"]) / min(seconds["bundle"]), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all shapes, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each way and shape")
    rounds: int = parser.parse_args(arguments).rounds
    results = {
        f"{shape.model}, {shape.state_dtype}, {shape.tokens} tokens": measure(shape, rounds)
        for shape in SHAPES
    }
    columns = list(next(iter(results.values())))
    lines = [
        "",
        f"- {rounds} rounds of each way, which take turns; {os.cpu_count()} cores for both processes",
        "",
        f"| bundle | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"| --- | {' | '.join('---:' for _ in columns)} |",
        *(
            f"| {name} | {' | '.join(f'{row[column]:g}' for column in columns)} |"
            for name, row in results.items()
        ),
    ]
    write("transfer", {"rounds": rounds, "found": results}, lines)


if __name__ == "__main__":
    main()
