"""Typed reading of a Hugging Face configuration, in which one quantity has several names.

Used by the family adapters only. Every failure names the source and the field; nothing is guessed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, overload

from mamba_planner.errors import MissingField, WrongField

T = TypeVar("T")

MAX_LAYERS = 10_000
"""Maximum number of layers, far beyond any model: a list of this length is harmless, one of 10**12 fills the
memory."""
_ABSENT = object()
LARGEST = (1 << 63) - 1
"""Maximum of an integer: larger ones are typing errors, and their sums leave the range of floating point."""


class Fields:
    """Reads the fields of one model configuration, and reports wrong ones by name.

    Of several names of a field, the first one is used in messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    def __bool__(self) -> bool:
        """Return whether the configuration has any field."""
        return bool(self._values)

    def has(self, name: str) -> bool:
        """Return whether the field is present, even as null."""
        return name in self._values

    @overload
    def integer(self, *names: str, minimum: int = ...) -> int: ...
    @overload
    def integer(self, *names: str, default: T, absent: T = ..., minimum: int = ...) -> int | T: ...
    def integer(self, *names: str, default: Any = _ABSENT, absent: Any = _ABSENT, minimum: int = 1) -> Any:
        """Return an integer from `minimum` to `LARGEST`.

        `default` is the result for a field that is absent or null, and `absent`, if given, the result for a
        field that is absent. Raises `MissingField` if the field has no value and there is no `default`, and
        `WrongField` for any other value.
        """
        name, value = self._find(names)
        if value is None:
            if absent is not _ABSENT and not any(map(self.has, names)):
                return absent
            return self._absent(names, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"expected an integer, found {value!r}")
        if value < minimum:
            raise self.wrong(name, f"must be at least {minimum}, found {value}")
        if value > LARGEST:
            raise self.wrong(name, "is too large: it does not fit into 64 bits")
        return value

    def layer_count(self, *names: str) -> int:
        """Return a number of layers, which is at most `MAX_LAYERS`: a list of so many is created from it."""
        count = self.integer(*names)
        if count > MAX_LAYERS:
            raise self.wrong(self._find(names)[0], f"must be at most {MAX_LAYERS}, found {count}")
        return count

    def integer_or_auto(self, name: str, auto: int) -> int:
        """Return an integer, or `auto` if the field is absent or is "auto"."""
        return auto if self._values.get(name) == "auto" else self.integer(name, default=auto)

    @overload
    def number(self, *names: str) -> float: ...
    @overload
    def number(self, *names: str, default: T) -> float | T: ...
    def number(self, *names: str, default: Any = _ABSENT) -> Any:
        name, value = self._find(names)
        if value is None:
            return self._absent(names, default)
        return self._as_float(name, value)

    def flag(self, *names: str, default: bool) -> bool:
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, f"expected true or false, found {value!r}")
        return value

    def word(self, *names: str, default: str) -> str:
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, f"expected a word, found {value!r}")
        return value

    def items(self, *names: str) -> list[Any] | None:
        name, value = self._find(names)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(name, f"expected a list, found {value!r}")
        return list(value)

    def numbers(self, *names: str, length: int, default: tuple[float, ...]) -> tuple[float, ...]:
        """Return exactly `length` numbers; infinities may be spelled `Infinity` or `{"__float__": …}`."""
        values = self.items(*names)
        if values is None:
            return default
        name = self._find(names)[0]
        if len(values) != length:
            raise self.wrong(name, f"expected {length} numbers, found {len(values)}")
        return tuple(self._as_float(name, value) for value in values)

    def tokens(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return the token ids of a field with one id or a list, such as `eos_token_id`; null = none."""
        value = self._values.get(name)
        if value is None:
            return () if self.has(name) else default
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self.wrong(name, f"expected token ids, found {value!r}")
        return tuple(values)

    def section(self, name: str) -> "Fields":
        """Return a nested object; an absent one is empty."""
        value = self._values.get(name)
        if value is None:
            return Fields({}, f"{self.source}: {name}")
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"expected an object, found {value!r}")
        return Fields(value, f"{self.source}: {name}")

    def sections(self) -> "list[Fields]":
        """Return all nested objects, whatever their names."""
        return [self.section(name) for name, value in self._values.items() if isinstance(value, Mapping)]

    def sections_by_name(self) -> "dict[str, Fields]":
        """Return all nested objects by their names."""
        return {
            name: self.section(name) for name, value in self._values.items() if isinstance(value, Mapping)
        }

    def others(self, names: Collection[str]) -> list[str]:
        """Return the names of fields that are neither among `names` nor null."""
        return [name for name, value in self._values.items() if value is not None and name not in names]

    def missing(self, *names: str) -> MissingField:
        """Return the error of an absent field; the first of its names is the one used in the message."""
        also = f" (also looked for {', '.join(names[1:])})" if len(names) > 1 else ""
        return MissingField(self.source, f"field {names[0]} is missing{also}", field=names[0])

    def wrong(self, name: str, message: str) -> WrongField:
        return WrongField(self.source, f"{name}: {message}", field=name)

    def _find(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            if (value := self._values.get(name)) is not None:
                return name, value
        return names[0], None

    def _absent(self, names: Sequence[str], default: Any) -> Any:
        if default is not _ABSENT:
            return default
        raise self.missing(*names)

    def _as_float(self, name: str, value: Any) -> float:
        if isinstance(value, Mapping) and set(value) == {"__float__"}:
            value = value["__float__"]
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self.wrong(name, f"expected a number, found {value!r}")
        try:
            number = float(value)
        except ValueError:
            raise self.wrong(name, f"expected a number, found {value!r}") from None
        except OverflowError:
            raise self.wrong(name, "is too large for a floating point number") from None
        if math.isnan(number):
            raise self.wrong(name, "must not be NaN")
        return number
