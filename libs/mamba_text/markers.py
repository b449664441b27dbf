"""Markers, stop strings and strings of JSON in text that arrives in pieces. Pure; used to parse answers."""

import re

_NEXT = re.compile(r'["\\]')


def unfinished(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that begins `marker` without completing it."""
    return next(
        (
            length
            for length in range(min(len(marker) - 1, len(text)), 0, -1)
            if marker.startswith(text[-length:])
        ),
        0,
    )


class JsonPlace:
    """The position up to which one growing text of JSON was read."""

    __slots__ = ("_place", "_string")

    def __init__(self) -> None:
        self._place = 0
        self._string = False

    def is_string(self, text: str) -> bool:
        """Return whether the text, which continues that of the last call, ends within a string."""
        while match := _NEXT.search(text, self._place):
            self._place = match.end()
            if match[0] == '"':
                self._string = not self._string
            elif self._string:
                self._place += 1
        self._place = max(self._place, len(text))
        return self._string
