"""Kubernetes quantities (`80Gi`, `500m`, `4`) and durations (`300s`, `5m`, `500ms`) as pydantic types.

Both keep the spelling of the user and convert on demand, so an object survives a round trip unchanged. Every
process reads sizes and times of a MambaDeployment through these types; nothing here does I/O.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from mamba_api.errors import InvalidDuration, InvalidQuantity

SUFFIXES: dict[str, Decimal] = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
UNITS: dict[str, Decimal] = {"ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
MAX_LENGTH = 32

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)


class Quantity(str):
    """A non-negative Kubernetes quantity. Raises `InvalidQuantity` for any other text."""

    __slots__ = ()

    def __new__(cls, text: str | int | Self) -> Self:
        """Check `text`; a plain integer is a number of units (bytes, cores)."""
        spelling = str(text)
        _parse(spelling)
        return super().__new__(cls, spelling)

    @property
    def value(self) -> Decimal:
        """Exact number of units."""
        return _parse(self)

    @property
    def bytes(self) -> int:
        """Number of whole bytes, rounded up as the API server does."""
        return int(self.value.to_integral_value(rounding=ROUND_CEILING))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: str | int) -> Quantity:
            return cls(value)

        return core_schema.no_info_after_validator_function(
            check,
            core_schema.union_schema(
                [core_schema.str_schema(strict=True), core_schema.int_schema(strict=True)],
                custom_error_type="quantity",
                custom_error_message="a quantity: an integer or a string such as 80Gi, 512Mi, 500m or 4",
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": MAX_LENGTH,
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [
                {
                    "rule": f"type(self) == string ? self.matches(r'{QUANTITY_PATTERN}') : self >= 0",
                    "message": "a quantity is a number with a unit of Kubernetes, such as 80Gi, 500m or 4",
                }
            ],
        }


class Duration(str):
    """A length of time such as `300s`, `5m`, `1h30m` or `500ms`.

    Raises `InvalidDuration` for any other text.
    """

    __slots__ = ()

    def __new__(cls, text: str | Self) -> Self:
        """Check `text`; a number without a unit is refused, because seconds would be a guess."""
        if not text or len(text) > MAX_LENGTH or re.fullmatch(DURATION_PATTERN[1:-1], text, re.ASCII) is None:
            raise InvalidDuration(
                f"{text!r} is no duration: write a number and a unit, such as 300s, 5m, 1h or 500ms"
            )
        return super().__new__(cls, text)

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return float(sum(Decimal(number) * UNITS[unit] for number, unit in _DURATION.findall(self)))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: str) -> Duration:
            return cls(value)

        return core_schema.no_info_after_validator_function(
            check,
            core_schema.custom_error_schema(
                core_schema.str_schema(strict=True),
                custom_error_type="duration",
                custom_error_message="a duration: a string with a unit, such as 300s, 5m, 1h or 500ms",
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "type": "string",
            "maxLength": MAX_LENGTH,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.matches(r'{DURATION_PATTERN}')",
                    "message": "a duration is a number with a unit, such as 300s, 5m, 1h or 500ms",
                }
            ],
        }


def parse_quantity(text: str | int) -> Decimal:
    """Return the number of units that `text` stands for. Raises `InvalidQuantity`."""
    return _parse(str(text))


def parse_duration(text: str) -> float:
    """Return the seconds that `text` stands for. Raises `InvalidDuration`."""
    return Duration(text).seconds


def _parse(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise InvalidQuantity(
            f"{text!r} is no quantity: write a number and a unit, such as 80Gi, 512Mi, 500m or 4"
        )
    number, suffix = match.groups()
    if suffix not in SUFFIXES:
        by_lower_case = {key.lower(): key for key in SUFFIXES if key}
        close = by_lower_case.get(suffix.removesuffix("B").removesuffix("b").lower())
        hint = f"; did you mean {number}{close}?" if close else ""
        raise InvalidQuantity(
            f"{text!r} has the unknown unit {suffix!r}: use Ki, Mi, Gi, Ti, k, M, G, T or m{hint}"
        )
    return Decimal(number) * SUFFIXES[suffix]
