"""The fields of a JSON body, read in pieces: the event loop turns between them.

Parsing holds the interpreter, in whatever thread. So of a large body only the fields that somebody reads
become objects, one field at a time, and those that have few entries are refused by their size.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from pydantic_core import from_json

from mamba_edge.errors import NO_BODY, InvalidRequest

LARGE = 64 * 1024
"""Bytes from which on a body is read in pieces; most that a small field takes."""
SMALL = frozenset({"logit_bias", "metadata"})
"""Fields of few short entries."""
COUNTED = 16 * 1024
"""Most colons of a large body whose unknown fields are told: names cost as much as values."""


class JsonFields:
    """Reads bodies whose known fields are `known`."""

    def __init__(self, known: frozenset[str]) -> None:
        self._known = tuple(sorted(known))
        self._one = asyncio.Lock()
        absent = msgspec.Raw(b"")
        self._pieces = msgspec.defstruct("Pieces", [(name, msgspec.Raw, absent) for name in self._known])

    async def read(self, body: bytes) -> dict[str, Any]:
        """The fields; of a large body with many names, only those that are known.

        Large ones are read one at a time, and small ones between their pieces. Raises InvalidRequest.
        """
        if len(body) < LARGE:
            return parse_json_object(body)
        async with self._one:
            return await self._read(body)

    async def _read(self, body: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        try:
            body.decode()  # strings that are passed over are not looked at below
            if body.count(b":") <= COUNTED:
                fields.update(dict.fromkeys(msgspec.json.decode(body, type=dict[str, msgspec.Raw])))
            pieces = msgspec.json.decode(body, type=self._pieces)
        except msgspec.ValidationError:
            raise InvalidRequest("the body must be a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
        for name in self._known:
            piece = getattr(pieces, name)
            if len(memoryview(piece)):
                await asyncio.sleep(0)
                fields[name] = _value(name, piece)
        await asyncio.sleep(0)
        return fields


def _value(name: str, piece: msgspec.Raw) -> Any:
    size = len(memoryview(piece))
    if name in SMALL and size > LARGE:
        raise InvalidRequest(f"{name}: takes {size} bytes, at most {LARGE} are accepted", param=name)
    try:
        with _no_collections():
            return from_json(memoryview(piece).tobytes(), allow_inf_nan=False)
    except ValueError as error:
        said = f"the body is not valid JSON: {name}: {error}"
        raise InvalidRequest(said, param=name, code="invalid_json") from None


def parse_json_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest saying where the JSON breaks."""
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
    """JSON has no cycles: looking for them while it is parsed takes most of the time of many small lists."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
