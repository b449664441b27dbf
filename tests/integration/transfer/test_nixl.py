"""The transport over NIXL, with memory of the CPU over TCP, between real processes.

NIXL is an optional package of half a gigabyte: where it is missing, these tests are skipped.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import wait_until
from mamba_transfer import Peer, TransferClient, Verdict
from mamba_transfer.nixl_transport import NixlRead, NixlTransport
from transfer_peers import LAYOUT, WANTED, bundle, peer_at

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(os.environ.get("UCX_TLS", "tcp") != "tcp", reason="UCX is set to another network"),
]
pytest.importorskip("nixl", exc_type=ImportError)
Reader = tuple[bytearray, list[memoryview], TransferClient]
SOON = 0.3
"""Seconds of a deadline that is meant to pass."""
SUPPORT = str(Path(__file__).parents[2] / "support")
SOURCE = """
import os, sys, time
from transfer_peers import HeldExports, bundle, fault, serving, strike
from mamba_transfer.nixl_transport import NixlTransport

arena, buffers = bundle(seed=1)
transport = NixlTransport(f"source-{os.getpid()}", memoryview(arena))
point, number = sys.argv[1], int(sys.argv[2])
source = HeldExports(buffers, 30.0, time.monotonic)
with serving(source, transports=[transport]) as (_, peer), fault(point, strike(number)):
    print(peer.address, flush=True)
    sys.stdin.read()
print(source.ends)
"""


@contextmanager
def nixl_source(point: str = "nowhere", number: int = 0) -> Iterator[tuple[Peer, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SOURCE, point, str(number)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": SUPPORT, "UCX_TLS": "tcp", "NIXL_LOG_LEVEL": "ERROR"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = ""
        while ":" not in line or " " in line.strip():
            line = process.stdout.readline()
            assert line, "the source ended early"
        yield peer_at(line.strip()), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def nixl_reader() -> Reader:
    os.environ["UCX_TLS"] = "tcp"
    arena, landing = bundle()
    transport = NixlTransport(f"reader-{os.getpid()}", memoryview(arena))
    return arena, landing, TransferClient(LAYOUT, transport=transport)


def test_a_bundle_arrives_whole_over_nixl(nixl_reader: Reader) -> None:
    arena, landing, client = nixl_reader
    ctypes.memset((ctypes.c_char * len(arena)).from_buffer(arena), 0, len(arena))
    _, expected = bundle(seed=1)
    with nixl_source() as (peer, process):
        for _ in range(3):
            outcome = client.fetch(peer, WANTED, landing, deadline=time.monotonic() + 60)
            assert (outcome.verdict, outcome.detail) == (Verdict.VALID, "")
        assert landing == expected
        answer, _ = process.communicate("")
        assert answer.strip().endswith("[True, True, True]")


def test_a_reader_without_nixl_and_a_source_with_it_use_sockets() -> None:
    _, landing = bundle()
    with nixl_source() as (peer, _):
        outcome = TransferClient(LAYOUT).fetch(peer, WANTED, landing, deadline=time.monotonic() + 60)
        assert outcome.verdict is Verdict.VALID


def test_a_read_from_a_killed_source_is_lost_and_its_writer_has_ended(nixl_reader: Reader) -> None:
    _, landing, client = nixl_reader
    with nixl_source("before checksums", signal.SIGKILL) as (peer, _):
        outcome = client.fetch(peer, WANTED, landing, deadline=time.monotonic() + 60)
        assert outcome.verdict is Verdict.LOST
        if (writer := outcome.writer) is not None:
            wait_until(writer.ended)


def test_a_stopped_source_that_has_offered_nothing_leaves_no_writer(nixl_reader: Reader) -> None:
    _, landing, client = nixl_reader
    with nixl_source("before offer", signal.SIGSTOP) as (peer, _):
        outcome = client.fetch(peer, WANTED, landing, deadline=time.monotonic() + SOON)
        assert (outcome.verdict, outcome.writer) == (Verdict.LOST, None)


def test_a_read_from_a_stopped_source_has_a_writer_until_its_end_is_seen(
    nixl_reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, landing, client = nixl_reader
    _, expected = bundle(seed=1)
    begin = NixlTransport._begin
    with nixl_source() as (peer, process):

        def begin_at_a_stopped_source(self: NixlTransport, agent: bytes, pairs: Any) -> NixlRead:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            return begin(self, agent, pairs)

        monkeypatch.setattr(NixlTransport, "_begin", begin_at_a_stopped_source)
        outcome = client.fetch(peer, WANTED, landing, deadline=time.monotonic() + SOON)
        assert outcome.verdict is Verdict.LOST
        assert outcome.writer is not None
        assert not outcome.writer.ended()
        monkeypatch.undo()
        process.send_signal(signal.SIGCONT)
        wait_until(outcome.writer.ended)
        # The read went on: its bytes landed after the fetch had returned.
        assert landing == expected
