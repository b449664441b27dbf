"""The target of a request's first line, taken apart. Those that come again are kept: paths are few."""

from urllib.parse import unquote

import httptools

KEPT_BYTES, KEPT_TARGETS = 128, 256
"""Longest target that is kept, and most of them: clients make up others."""


class _Targets(dict[bytes, tuple[str, bytes, bytes]]):
    """By target: its path as text, as it was written, and its query, without the question mark.

    Raises `HttpParserInvalidURLError`, UnicodeDecodeError or AttributeError for what has no path, which the
    parser makes an error of the request.
    """

    def __missing__(self, target: bytes) -> tuple[str, bytes, bytes]:
        parsed = httptools.parse_url(target)
        path = parsed.path.decode("ascii")
        found = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
        if len(target) <= KEPT_BYTES:
            if len(self) >= KEPT_TARGETS:
                self.clear()  # those that come again are soon back
            self[target] = found
        return found


targets = _Targets()
"""Of one process."""
