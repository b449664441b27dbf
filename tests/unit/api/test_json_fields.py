"""Fields of bodies that are read in pieces."""

import asyncio
import json
from typing import Any

import pytest

from mamba_edge.errors import InvalidRequest
from mamba_server.api.requests.json_fields import LARGE_BYTES, JsonFields

KNOWN = frozenset({"prompt", "max_tokens", "metadata", "user"})
READER = JsonFields(KNOWN)
FILLER = " " * LARGE_BYTES


async def read(text: str | bytes) -> dict[str, Any]:
    raw = text if isinstance(text, bytes) else text.encode()
    return await READER.read(raw)


@pytest.mark.parametrize("size", [1, LARGE_BYTES])
async def test_a_large_body_is_read_like_a_small_one(size: int) -> None:
    fields = {"prompt": ["ä\n", 1, [2], None, {}] * size, "max_tokens": -1, "user": None, "other": 1.5}
    read_fields = await read(json.dumps(fields))
    assert {name: read_fields[name] for name in KNOWN & set(fields)} == {
        name: fields[name] for name in KNOWN & set(fields)
    }
    assert set(read_fields) == set(fields)  # unknown ones are told


async def test_the_last_of_one_name_counts_and_names_may_be_escaped() -> None:
    text = '{"prompt": "a", "user": "x", "\\u0070rompt": "b"}'
    assert await read(text) == await read(text + FILLER)


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        b"",
        b"{",
        b'{"prompt": 1,}',
        b'{"prompt": NaN}',
        b'{"other": NaN}',
        b'{"prompt": "\xff"}',
        b'{"other": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": 1} 2',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("filler", ["", FILLER])
async def test_what_is_no_json_object_is_refused_whatever_its_size(body: bytes, filler: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read(body + filler.encode())
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("body", [b"", b" \n"])
async def test_a_missing_body_is_told_as_that(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="is empty"):
        await read(body)


async def test_a_field_of_few_entries_is_refused_by_its_size() -> None:
    entries = {str(number): "x" for number in range(LARGE_BYTES // 4)}
    with pytest.raises(InvalidRequest) as caught:
        await read(json.dumps({"prompt": "x", "metadata": entries}))
    assert caught.value.param == "metadata"


async def test_many_unknown_names_are_not_made() -> None:
    text = json.dumps({"prompt": "x", **{f"n{number}": 0 for number in range(LARGE_BYTES)}})
    assert await read(text) == {"prompt": "x"}


async def test_others_have_their_turn_between_the_fields() -> None:
    turns = 0
    text = json.dumps({"prompt": [1] * LARGE_BYTES, "user": "x" * LARGE_BYTES, "max_tokens": 1})
    reading = asyncio.create_task(read(text))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
