"""Bytes in words, both ways: as settings take them, and as reasons, tables and status show them. Pure."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize
from pydantic_core import PydanticCustomError

_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_SIZE = re.compile(r"[0-9]*\.?[0-9]+\s*[A-Za-z]*")
"""All of a size: ByteSize reads the 1 of 1,5Gi and passes over the rest."""


def binary_size(count: int) -> str:
    """`3328599654` -> `3.1Gi`; below 1 Ki the plain number; negative counts keep their sign."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, suffix in _UNITS:
        # What would be rounded to 1024.0 of a unit is 1.0 of the next.
        if round(size / (unit >> 10), 1) >= 1024:
            return f"{sign}{size / unit:.1f}{suffix}"
    return f"{sign}{size}"


def exact_size(count: int) -> str:
    """`33554432` -> `32Mi`; the plain number where no unit divides it."""
    for unit, suffix in _UNITS:
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def _binary(size: Any) -> Any:
    """2Gi, as Kubernetes writes it, is what ByteSize calls 2GiB; what ByteSize would cut off is refused."""
    if not isinstance(size, str):
        return size
    text = size.strip()
    if not _SIZE.fullmatch(text):
        raise PydanticCustomError(
            "byte_size", "'{size}' is no number of bytes: write it like 1536Mi, 1.5Gi or 2G", {"size": size}
        )
    return f"{text}B" if text.endswith("i") else text


Bytes = Annotated[ByteSize, BeforeValidator(_binary)]
"""A number of bytes, or a text such as 512Mi, 2Gi, 2GiB, 2G."""
