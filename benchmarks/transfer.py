"""Throughput of states between two processes, beside a plain Python socket in the same run.

Run as `python -m benchmarks.transfer [--rounds N]`; writes JSON and Markdown to benchmarks/results. A source
process has the arena of a published model and serves it in three ways in turn: as bundles with checksums,
moved by the C++ library or by Python, and as the same number of bytes through `sendall`. Each round opens a
connection of its own, as a fetch does. Ratios are those of rounds that follow each other; the one of CPU
seconds, of both processes together, depends less on what else the machine does.
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
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cache.record import write

from mamba_planner.families import model_config_from_hf
from mamba_server.engine.transfers.byte_mover import byte_mover
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
from mamba_transfer.socket_transport import SocketTransport

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
    """Serve the bundle in all ways until the pipe closes, and tell this process's CPU seconds on request."""
    bundle = Bundle(shape, seed=1)
    servers = {
        name: TransferServer(bundle.layout, INCARNATION, bundle, transports=(SocketTransport(mover),))
        for name, mover in (("bundle", byte_mover()), ("python", None))
    }
    plain = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_send_plainly, args=(plain, memoryview(bundle.arena)[: bundle.length]))
    thread.daemon = True
    thread.start()
    ports = {name: str(server.start("127.0.0.1", 0)) for name, server in servers.items()}
    pipe.send((ports, plain.getsockname()[1]))
    with suppress(EOFError):
        while True:
            pipe.recv()
            pipe.send(time.process_time())


def _send_plainly(listener: socket.socket, memory: memoryview) -> None:
    while True:
        end, _ = listener.accept()
        with end:
            end.recv(1)
            end.sendall(memory)


class Source:
    """The process of the source: its addresses, and its CPU seconds."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        addresses, self.plain_port = pipe.recv()
        self.peers = {name: Peer(Address.parse(each), INCARNATION) for name, each in addresses.items()}

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the process has taken so far."""
        self._pipe.send(None)
        return float(self._pipe.recv())


@contextmanager
def running(shape: Shape) -> Iterator[Source]:
    """Run the source in a process of its own."""
    here, there = get_context("fork").Pipe()
    process = get_context("fork").Process(target=source, args=(shape, there), daemon=True)
    process.start()
    try:
        yield Source(here)
    finally:
        process.kill()
        process.join()


def receive_plainly(port: int, memory: memoryview) -> None:
    """Receive all bytes through `recv_into`, after one connection and a request of a byte."""
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.sendall(b"g")
        while memory.nbytes:
            memory = memory[end.recv_into(memory, memory.nbytes, socket.MSG_WAITALL) :]


def fetch(client: TransferClient, peer: Peer, bundle: Bundle) -> None:
    """Fetch the bundle once. Raises RuntimeError if it is not VALID."""
    outcome = client.fetch(peer, bundle.wanted, bundle.buffers, deadline=time.monotonic() + 60)
    if outcome.verdict is not Verdict.VALID:
        raise RuntimeError(f"a fetch ended {outcome.verdict}: {outcome.detail}")


def measure(shape: Shape, rounds: int) -> dict[str, Any]:
    """Return the throughput of all ways, whose rounds take turns, and the CPU seconds of both sides."""
    target = Bundle(shape, seed=None)
    client = TransferClient(target.layout, transport=SocketTransport(byte_mover()))
    by_python = TransferClient(target.layout)
    with running(shape) as of:
        ways: dict[str, Callable[[], None]] = {
            "plain": lambda: receive_plainly(of.plain_port, memoryview(target.arena)[: target.length]),
            "bundle": lambda: fetch(client, of.peers["bundle"], target),
            "python": lambda: fetch(by_python, of.peers["python"], target),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 2):
            for name, way in ways.items():
                wall, busy = time.perf_counter(), time.thread_time() + of.cpu_seconds()
                way()
                wall = time.perf_counter() - wall
                if number >= 2:  # the first ones grow the buffers of the kernel
                    seconds[name].append(wall)
                    cpu[name].append(time.thread_time() + of.cpu_seconds() - busy)
    row: dict[str, Any] = {
        "state_mib": round(target.layout.state_bytes / 2**20, 1),
        "pages_mib": round((target.length - target.layout.state_bytes) / 2**20, 1),
        "plain_gb_per_second": round(target.length / statistics.median(seconds["plain"]) / 1e9, 2),
    }
    for name in ("bundle", "python"):
        row[f"{name}_gb_per_second"] = round(target.length / statistics.median(seconds[name]) / 1e9, 2)
        row[f"{name}_median_ratio"] = _ratio(seconds["plain"], seconds[name])
        row[f"{name}_best_ratio"] = round(min(seconds["plain"]) / min(seconds[name]), 2)
        row[f"{name}_cpu_ratio"] = _ratio(cpu["plain"], cpu[name])
    return row


def _ratio(plain: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios of rounds that follow each other."""
    return round(statistics.median(a / b for a, b in zip(plain, other, strict=True)), 2)


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
