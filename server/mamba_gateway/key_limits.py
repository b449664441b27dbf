"""The limits and the weight of each API key: defaults for all keys, and entries for individual ones.

Without a file of keys, all clients together count as one key with the name `ANYONE`. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mamba_api.names import API_KEY_NAME

ANYONE = "anyone"
"""Name under which all clients are counted where no keys are required."""
_FIELDS = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "concurrent": "concurrent_requests",
    "weight": "weight",
}
MOST = 10**9


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None = no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of prompts and answers per minute, together."""
    concurrent_requests: int | None = None
    """Requests under way at the same time, including those that wait."""
    weight: int = 1
    """Weight of the key's requests while requests of other keys wait, too: engines are shared in proportion
    to the weights."""

    @property
    def limited(self) -> bool:
        """Whether the key has at least one limit."""
        return not (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrent_requests is None
        )


NO_LIMITS = KeyLimits()
"""Limits of a key without limits."""


class KeyLimitTable:
    """Looks up the limits of an API key by its name."""

    def __init__(self, default: KeyLimits, entries: Mapping[str, KeyLimits]) -> None:
        self._default, self._entries = default, entries

    def limits_of(self, name: str) -> KeyLimits:
        """Return the limits of one key."""
        return self._entries.get(name, self._default)

    def weight(self, name: str) -> int:
        """Return the weight of one key."""
        return self._entries.get(name, self._default).weight

    @property
    def limited(self) -> bool:
        """Whether at least one key has a limit."""
        return any(limits.limited for limits in (self._default, *self._entries.values()))

    @property
    def count_tokens(self) -> bool:
        """Whether at least one key has a limit on tokens."""
        every = (self._default, *self._entries.values())
        return any(limits.tokens_per_minute is not None for limits in every)

    @classmethod
    def parsed(cls, default: KeyLimits, entries: Iterable[str]) -> "KeyLimitTable":
        """Parse entries such as `NAME:requests=60,tokens=9000,concurrent=4,weight=2`.

        A field that is missing has the default. Raises ValueError with a message about the error.
        """
        table: dict[str, KeyLimits] = {}
        for entry in entries:
            name, _, limits = entry.partition(":")
            if not API_KEY_NAME.fullmatch(name):
                raise ValueError(f"{entry!r}: begins with no name of a key; write NAME:requests=60,weight=2")
            if name in table:
                raise ValueError(f"{entry!r}: {name} has limits already; put all of them into one entry")
            table[name] = replace(default, **_changes(entry, limits))
        return cls(default, table)


def _changes(entry: str, limits: str) -> dict[str, int]:
    changes: dict[str, int] = {}
    for part in limits.split(","):
        word, _, number = part.partition("=")
        if word not in _FIELDS or _FIELDS[word] in changes or not (number.isascii() and number.isdecimal()):
            fields = ", ".join(f"{field}=NUMBER" for field in _FIELDS)
            raise ValueError(f"{entry!r}: {part!r} is not one of {fields}; write each at most once")
        if not 1 <= int(number[:12]) <= (1000 if word == "weight" else MOST):
            raise ValueError(f"{entry!r}: {part!r} is out of range")
        changes[_FIELDS[word]] = int(number)
    return changes
