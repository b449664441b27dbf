"""The head of a request whose client offers to speak another protocol, without the offer. Pure.

None is taken up here, and an offer that is not taken up is passed over (RFC 9110, 7.8): the request is
answered as if its client had said nothing of it. Many clients offer HTTP/2 on each plain connection.
"""

from collections.abc import Iterable

_OFFERED = frozenset((b"upgrade", b"http2-settings"))


def head_without_offer(
    method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Request line and headers, with the empty line behind them; names of `headers` in lower case."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [each for each in value.split(b",") if each.strip().lower() not in _OFFERED]
            if options:
                lines.append(b"connection:%b\r\n" % b",".join(options))
        elif name not in _OFFERED:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"\r\n"))
