"""Conversion between bytes and words: as settings read them, and as reasons, tables and status show them.

Pure.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize
from pydantic_core import PydanticCustomError

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import Quantity

_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_SPELLING = re.compile(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)")
_SUFFIXES = {name.lower(): name for name in ("", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi")}


def binary_size(count: int) -> str:
    """Return `3328599654` as `3.1Gi`; below 1 Ki the plain number. Negative counts keep their sign."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, suffix in _UNITS:
        # A size that would be rounded to 1024.0 of a unit is 1.0 of the next.
        if round(size / (unit >> 10), 1) >= 1024:
            return f"{sign}{size / unit:.1f}{suffix}"
    return f"{sign}{size}"


def exact_size(count: int) -> str:
    """Return `33554432` as `32Mi`; the plain number if no unit divides it."""
    for unit, suffix in _UNITS:
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def read_size(text: str) -> int:
    """Return the bytes of a Kubernetes quantity, also as people spell one: `2Gi`, `2GiB` or `2 gi`.

    Raises InvalidQuantity, also for a text with another meaning in Kubernetes, such as `2m` (thousandths).
    """
    spelling = text.strip()
    match = _SPELLING.fullmatch(spelling)
    if match is None or spelling[-1] in "num":
        raise InvalidQuantity(f"{text!r} is no number of bytes: write it like 1536Mi, 1.5Gi or 2G")
    number, unit = match.groups()
    suffix = _SUFFIXES.get(unit.removesuffix("B").lower(), unit)  # Quantity refuses an unknown unit
    return Quantity(f"0{number}{suffix}" if number.startswith(".") else f"{number}{suffix}").bytes


def _binary(size: Any) -> Any:
    if not isinstance(size, str):
        return size
    try:
        return read_size(size)
    except InvalidQuantity as error:
        raise PydanticCustomError("byte_size", "{words}", {"words": str(error)}) from error


Bytes = Annotated[ByteSize, BeforeValidator(_binary)]
"""A number of bytes, or a text such as 512Mi, 2Gi, 2GiB or 2G, read alike by Kubernetes and every command."""
