"""The ready line reaches who waits for it, and keeps no server from serving where it cannot."""

import io
import os

from structlog.testing import capture_logs

from mamba_edge.listener import tell_ready


def test_it_is_a_line_of_its_own_at_once() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as stream:
        tell_ready("ready at http://127.0.0.1:8000", stream)
        assert os.read(reader.fileno(), 100) == b"ready at http://127.0.0.1:8000\n"


def test_a_full_disk_loses_the_line_and_the_log_has_it() -> None:
    raw = io.FileIO("/dev/full", "w")
    with io.TextIOWrapper(raw, write_through=True) as full, capture_logs() as logged:
        tell_ready("ready", full)
    assert [(line["event"], line["line"], line["reason"]) for line in logged] == [
        ("ready_line_lost", "ready", "No space left on device")
    ]


def test_a_pipe_that_nobody_reads_loses_the_line_alone() -> None:
    read, write = os.pipe()
    os.close(read)
    with (
        io.TextIOWrapper(os.fdopen(write, "wb", buffering=0), write_through=True) as pipe,
        capture_logs() as logged,
    ):
        tell_ready("ready", pipe)
    assert [line["reason"] for line in logged] == ["Broken pipe"]
