"""`JsonPlace`: whether a text of JSON that grows ends within a string. Pure."""

import re

_NEXT = re.compile(r'["\\]')


class JsonPlace:
    """The place up to which one text was read."""

    __slots__ = ("_place", "_string")

    def __init__(self) -> None:
        self._place = 0
        self._string = False

    def is_string(self, text: str) -> bool:
        """Whether the text, which begins with the one of the last call, ends within a string."""
        while found := _NEXT.search(text, self._place):
            self._place = found.end()
            if found[0] == '"':
                self._string = not self._string
            elif self._string:
                self._place += 1
        self._place = max(self._place, len(text))
        return self._string
