"""The fields of a JSON body, parsed in pieces so that the event loop runs between them.

Parsing holds the interpreter lock, in whatever thread. So only known fields of a large body become objects,
one field at a time, and fields that hold few entries are refused if they are large.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from pydantic_core import from_json

from mamba_edge.errors import NO_BODY, InvalidRequest

LARGE_BYTES = 64 * 1024
"""Size from which a body is parsed in pieces, and maximum size of a field in `SMALL_FIELDS`."""
SMALL_FIELDS = frozenset({"logit_bias", "metadata"})
"""Fields that hold few short entries."""
MAX_COLONS = 16 * 1024
"""Most colons of a large body whose unknown fields are listed: parsing a name takes as long as a value."""


class JsonFields:
    """Reads only the fields `names` from JSON bodies, which may have others."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = tuple(sorted(names))
        self._large_body = asyncio.Lock()
        absent = msgspec.Raw(b"")
        self._pieces = msgspec.defstruct("Pieces", [(name, msgspec.Raw, absent) for name in self._names])

    async def read(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body; without unknown fields if the body is large and has many names.

        Large bodies are parsed one at a time; small ones are parsed between their pieces. Raises
        InvalidRequest.
        """
        if len(body) < LARGE_BYTES:
            return parse_json_object(body)
        async with self._large_body:
            return await self._read(body)

    async def _read(self, body: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        try:
            body.decode()  # msgspec does not validate the strings that it skips below
            if body.count(b":") <= MAX_COLONS:
                fields.update(dict.fromkeys(msgspec.json.decode(body, type=dict[str, msgspec.Raw])))
            pieces = msgspec.json.decode(body, type=self._pieces)
        except msgspec.ValidationError:
            raise InvalidRequest("the body must be a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
        for name in self._names:
            piece = getattr(pieces, name)
            if len(memoryview(piece)):
                await asyncio.sleep(0)
                fields[name] = _value(name, piece)
        await asyncio.sleep(0)
        return fields


def _value(name: str, piece: msgspec.Raw) -> Any:
    size = len(memoryview(piece))
    if name in SMALL_FIELDS and size > LARGE_BYTES:
        raise InvalidRequest(
            f"{name}: the field has {size} bytes, and at most {LARGE_BYTES} are accepted", param=name
        )
    try:
        with _no_collections():
            return from_json(memoryview(piece).tobytes(), allow_inf_nan=False)
    except ValueError as error:
        message = f"the body is not valid JSON: {name}: {error}"
        raise InvalidRequest(message, param=name, code="invalid_json") from None


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidRequest, whose message says where the JSON is invalid."""
    if not body.strip():
        raise InvalidRequest(NO_BODY, code="invalid_json")
    try:
        with _no_collections():
            fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return fields


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause garbage collection: JSON has no cycles, and the search for them would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
