"""Server-sent events: aligns a relayed stream to event boundaries, and terminates a broken one.

Events are neither parsed nor changed. Only an incomplete event at the end is buffered, so that an error event
can follow at any time without corrupting a half-sent one.
"""

from mamba_edge.errors import ApiError

DONE = b"data: [DONE]\n\n"
MAX_BUFFERED = 1024 * 1024
"""Size in bytes from which a partial event is passed on as it is, so that memory stays bounded."""


class EventAligner:
    """Cuts a byte stream behind the last complete event."""

    def __init__(self) -> None:
        self._buffer = b""
        self._mid_event = False
        """Whether a part of an incomplete event has been passed on already."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes to pass on now; the rest waits for more."""
        data = self._buffer + chunk if self._buffer else chunk
        end = _last_boundary(data)
        if end == 0 and len(data) > MAX_BUFFERED:
            self._buffer, self._mid_event = b"", True
            return data
        if end:
            self._mid_event = False
        out, self._buffer = data[:end], data[end:]
        return out

    def flush(self) -> bytes:
        """Return the buffered rest of a stream that ended normally."""
        rest, self._buffer = self._buffer, b""
        return rest

    def terminate(self, error: ApiError) -> bytes:
        """Return the bytes that end a broken stream as an engine would: the error event, then [DONE].

        A buffered partial event is dropped.
        """
        self._buffer = b""
        return (b"\n\n" if self._mid_event else b"") + error.event() + DONE


def _last_boundary(data: bytes) -> int:
    if data.endswith(b"\n\n"):  # as nearly every piece does
        return len(data)
    # A blank line ends an event; the line end may be LF, CR LF or CR (HTML standard, section 9.2.5).
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if mark in data)
    return max(ends, default=0)
