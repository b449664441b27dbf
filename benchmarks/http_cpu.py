"""CPU time that one HTTP request costs the API process of an engine, or a gateway: whole answers and streams.

Run as `python -m benchmarks.http_cpu [--gateway] [--against DIR] [--peer PYTHON]`; writes JSON and Markdown
to benchmarks/results. With `--against` another checkout (with a .venv of its own) is measured in the same
rounds one after the other, so that both have the same machine; with `--peer` so is sglang-router, another
gateway, from an environment that has it. CPU time is that of all threads of the process, from
the kernel's accounts; the engine, the upstream and the client are processes of their own.
"""

import argparse
import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.cache.record import write

ROOT = Path(__file__).resolve().parents[1]
PARTS = Path(__file__).with_name("http_cpu_parts.py")
TINY = Path("server", "mamba_server", "builtin", "tiny-recall")
TOKENS = 64


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to ask."""

    name: str
    body: dict[str, Any]
    requests: int
    """In one round."""
    connections: int
    """Over which they are sent, one after the other on each: few for streams, since deltas are joined where
    the process does not keep up, and fewer events cost less."""


PROMPT = {"model": "m", "prompt": "The quick brown fox jumps over the lazy dog.", "max_tokens": TOKENS}
KINDS = (
    Kind("whole answer", PROMPT, 400, 8),
    Kind(f"stream of {TOKENS} tokens", {**PROMPT, "stream": True, "cache_salt": "stream"}, 48, 4),
)


@dataclass(slots=True)
class Measured:
    """A process under test and what was found."""

    label: str
    pid: int
    port: int
    micros: dict[str, list[float]] = field(default_factory=dict)
    """CPU time of a request by kind, one number a round."""
    events: dict[str, float] = field(default_factory=dict)
    """Server-sent events of a request: fewer than tokens where the process could not keep up."""


@contextmanager
def started(command: Sequence[str], pattern: str, cwd: Path) -> Iterator[tuple[int, str]]:
    """A child process that has said it is ready: its id and the URL in that line."""
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(pattern + r".*?(http://[^\s)/]+)", line):
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended: {''.join(said[-10:])}")
        # Nobody may block on a full pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process.pid, found[1]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def api(tree: Path) -> Iterator[tuple[int, str]]:
    """The API process of a tree over the scripted engine."""
    command = [str(tree / ".venv/bin/python"), "-P", str(PARTS), "api", str(tree / TINY)]
    with started(command, "mambaserve: ready", tree) as found:
        yield found


@contextmanager
def gateway(tree: Path, *options: str) -> Iterator[tuple[int, str]]:
    """The gateway of a tree before the scripted upstream."""
    python = str(tree / ".venv/bin/python")
    with started([sys.executable, "-P", str(PARTS), "upstream"], "upstream ready", tree) as (_, url):
        command = [python, "-P", "-m", "mamba_cli", "gateway", "--backend", url, "--port", "0"]
        with started([*command, *options], "gateway ready", tree) as found:
            yield found


@contextmanager
def peer(python: Path) -> Iterator[tuple[int, str]]:
    """The sglang-router of an environment before the scripted upstream, with its own defaults."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with started([sys.executable, "-P", str(PARTS), "upstream"], "upstream ready", ROOT) as (_, upstream):
        command = [
            str(python), "-m", "sglang_router.launch_router", "--worker-urls", upstream,
            "--host", "127.0.0.1", "--port", port, "--log-level", "warn",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(f"{url}/v1/completions"):
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.2)
            yield process.pid, url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    asked = urllib.request.Request(url, json.dumps(PROMPT).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have run so far, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def ask(port: int, kind: Kind) -> int:
    """Send the requests of one round; the number of events that came back."""
    data = json.dumps(kind.body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    message = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    left, events = kind.requests, 0

    async def connection() -> None:
        nonlocal left, events
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left:
            left -= 1
            writer.write(message)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not answer.startswith(b"http/1.1 200"):
                raise RuntimeError(f"not answered: {answer!r}")
            length = re.search(rb"content-length: (\d+)", answer)
            if length is not None:
                await reader.readexactly(int(length[1]))
            else:
                events += (await reader.readuntil(b"\r\n0\r\n\r\n")).count(b"data: {")
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(connection() for _ in range(kind.connections)))
    return events


def measure(under_test: Sequence[Measured], rounds: int) -> None:
    """All rounds, each process in turn within each kind; a first round warms up and is not counted."""
    for number in range(rounds + 1):
        for kind in KINDS:
            for one in under_test:
                before = cpu_seconds(one.pid)
                events = asyncio.run(ask(one.port, kind))
                micros = 1e6 * (cpu_seconds(one.pid) - before) / kind.requests
                if number:
                    one.micros.setdefault(kind.name, []).append(round(micros, 1))
                    one.events[kind.name] = round(events / kind.requests, 1)
        print(f"round {number} of {rounds}", file=sys.stderr)


def table(under_test: Sequence[Measured]) -> list[str]:
    """Minimum and median of each kind, and how the last tree compares with the first."""
    lines = ["", "| CPU time of a request, µs | tree | minimum | median |", "| --- | --- | --- | --- |"]
    for kind in KINDS:
        lines += [
            f"| {kind.name} | {one.label} | {min(found):.0f} | {statistics.median(found):.0f} |"
            for one in under_test
            for found in [one.micros[kind.name]]
        ]
    if len(under_test) == 2:
        old, new = under_test
        for kind in KINDS:
            least = min(new.micros[kind.name]) / min(old.micros[kind.name])
            middle = statistics.median(new.micros[kind.name]) / statistics.median(old.micros[kind.name])
            lines += ["", f"{kind.name}: {least:.2f} times by the minima, {middle:.2f} by the medians"]
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
    given = parser.parse_args(arguments)
    if given.peer is not None and not given.gateway:
        parser.error("--peer is a gateway: say --gateway, too")
    trees = [("this tree", ROOT)]
    if given.against is not None:
        trees.insert(0, ("the other tree", given.against.resolve()))
    with ExitStack() as stack:
        under_test = []
        if given.peer is not None:
            pid, url = stack.enter_context(peer(given.peer))
            under_test.append(Measured("sglang-router", pid, urlsplit(url).port or 80))
        for label, tree in trees:
            pid, url = stack.enter_context((gateway if given.gateway else api)(tree))
            under_test.append(Measured(label, pid, urlsplit(url).port or 80))
        measure(under_test, given.rounds)
    found = {
        "tokens": TOKENS,
        "rounds": given.rounds,
        "commits": {label: _commit(tree) for label, tree in trees},
        "micros_per_request": {one.label: one.micros for one in under_test},
        "events_per_request": {one.label: one.events for one in under_test},
    }
    write("http-cpu-gateway" if given.gateway else "http-cpu-api", found, table(under_test))


def _commit(tree: Path) -> str:
    asked = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
