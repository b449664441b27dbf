"""Markers, stop strings and strings of JSON in text that arrives in pieces. Pure; used to parse answers."""

import re

_NEXT = re.compile(r'["\\]')
_BRACKETS = re.compile(r'["{}\[\]]')


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


class JsonDepth:
    """Finds where one object or list of JSON ends, in text that arrives piece by piece."""

    __slots__ = ("_depth", "_escaped", "_string")

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escaped = False

    def end(self, text: str) -> int | None:
        """Return the index in `text` behind the end of the JSON; None = the JSON does not end in it.

        `text` continues the text of the last call.
        """
        place = 0
        if self._escaped and text:
            place, self._escaped = 1, False
        while match := (_NEXT if self._string else _BRACKETS).search(text, place):
            place = match.end()
            if match[0] == "\\":
                self._escaped = place == len(text)
                place += 1
            elif match[0] == '"':
                self._string = not self._string
            else:
                self._depth += 1 if match[0] in "{[" else -1
                if not self._depth:
                    return place
        return None


class JsonPlace:
    """Follows a growing text of JSON, and says whether its end lies within a string."""

    __slots__ = ("_place", "_string")

    def __init__(self) -> None:
        self._place = 0
        self._string = False

    def is_string(self, text: str) -> bool:
        """Return whether the text ends within a string.

        `text` is the whole text, which begins with the text of the last call.
        """
        while match := _NEXT.search(text, self._place):
            self._place = match.end()
            if match[0] == '"':
                self._string = not self._string
            elif self._string:
                self._place += 1
        self._place = max(self._place, len(text))
        return self._string
