"""Streams are passed on in whole events."""

import json

from mamba_gateway.errors import UpstreamLost
from mamba_gateway.relay.answer import MAX_BUFFERED, EventAligner

BROKEN = UpstreamLost("gone")
END = BROKEN.event() + b"data: [DONE]\n\n"


def test_whole_events_pass_at_once() -> None:
    aligner = EventAligner()
    assert aligner.feed(b"data: 1\n\ndata: 2\n\n") == b"data: 1\n\ndata: 2\n\n"
    assert aligner.flush() == b""


def test_the_part_of_an_event_waits_for_its_end() -> None:
    aligner = EventAligner()
    assert aligner.feed(b"data: 1\n\nda") == b"data: 1\n\n"
    assert aligner.feed(b"ta: 2\n") == b""
    assert aligner.feed(b"\nd") == b"data: 2\n\n"
    assert aligner.flush() == b"d"
    assert aligner.flush() == b""


def test_line_ends_of_every_kind_end_an_event() -> None:
    for mark in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert EventAligner().feed(b"data: 1" + mark + b"x") == b"data: 1" + mark


def test_a_broken_stream_drops_the_half_event_and_says_why() -> None:
    aligner = EventAligner()
    aligner.feed(b'data: 1\n\ndata: {"half')
    cut = aligner.terminate(BROKEN)
    assert cut == END
    assert json.loads(cut.split(b"\n\n")[0].removeprefix(b"data: "))["error"] == {
        "message": "gone", "type": "server_error", "param": None, "code": "upstream_died",
    }  # fmt: skip
    assert aligner.flush() == b""


def test_a_giant_event_is_not_held_without_end() -> None:
    aligner = EventAligner()
    assert aligner.feed(b"x" * MAX_BUFFERED) == b""
    assert len(aligner.feed(b"yy")) == MAX_BUFFERED + 2
    assert aligner.terminate(BROKEN) == b"\n\n" + END


def test_after_a_giant_event_s_end_the_error_needs_no_break() -> None:
    aligner = EventAligner()
    aligner.feed(b"x" * (MAX_BUFFERED + 1))
    assert aligner.feed(b"\n\n") == b"\n\n"
    assert aligner.terminate(BROKEN) == END
