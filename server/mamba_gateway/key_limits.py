"""What one key may use: its limits and its weight, by defaults for all keys and entries for single ones.

Without a key file all clients together are one, called `ANYONE`. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mamba_edge.key_name import KEY_NAME

ANYONE = "anyone"
"""Who calls where no keys are asked for."""
_FIELDS = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "concurrent": "concurrent_requests",
    "weight": "weight",
}
MOST = 10**9


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Of one key; None = no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    concurrent_requests: int | None = None
    """Under way at once, those that wait included."""
    weight: int = 1
    """Its share of the engines while others wait too, in proportion to theirs."""

    @property
    def limited(self) -> bool:
        """There is anything to count."""
        return not (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrent_requests is None
        )


NO_LIMITS = KeyLimits()
"""Limits of a key that nothing limits."""


class KeyLimitTable:
    """The limits of every key by its name."""

    def __init__(self, default: KeyLimits, entries: Mapping[str, KeyLimits]) -> None:
        self._default, self._entries = default, entries

    def limits_of(self, name: str) -> KeyLimits:
        """Those of one key."""
        return self._entries.get(name, self._default)

    def weight(self, name: str) -> int:
        """That of one key."""
        return self._entries.get(name, self._default).weight

    @property
    def limited(self) -> bool:
        """Some key has a limit."""
        return any(each.limited for each in (self._default, *self._entries.values()))

    @property
    def count_tokens(self) -> bool:
        """Some key has a limit of tokens."""
        every = (self._default, *self._entries.values())
        return any(each.tokens_per_minute is not None for each in every)

    @classmethod
    def parsed(cls, default: KeyLimits, entries: Iterable[str]) -> "KeyLimitTable":
        """`NAME:requests=60,tokens=9000,concurrent=4,weight=2` each; what one leaves out is the default.

        Raises ValueError with what is wrong.
        """
        made: dict[str, KeyLimits] = {}
        for entry in entries:
            name, _, limits = entry.partition(":")
            if not KEY_NAME.fullmatch(name):
                raise ValueError(f"{entry!r}: begins with no name of a key; write NAME:requests=60,weight=2")
            if name in made:
                raise ValueError(f"{entry!r}: {name} has limits already; put all of them into one entry")
            made[name] = replace(default, **_changes(entry, limits))
        return cls(default, made)


def _changes(entry: str, limits: str) -> dict[str, int]:
    changes: dict[str, int] = {}
    for part in limits.split(","):
        word, _, number = part.partition("=")
        if word not in _FIELDS or _FIELDS[word] in changes or not (number.isascii() and number.isdecimal()):
            known = ", ".join(f"{each}=NUMBER" for each in _FIELDS)
            raise ValueError(f"{entry!r}: {part!r} is none of {known}, once each")
        if not 1 <= int(number[:12]) <= (1000 if word == "weight" else MOST):
            raise ValueError(f"{entry!r}: {part!r} is out of range")
        changes[_FIELDS[word]] = int(number)
    return changes
