"""The text that a model has written, read from an answer in any dialect, so that two answers can be compared.

Ids, times and token counts of two answers always differ, so only the fields that a model writes are read:
texts, reasoning, calls of tools, and why the answer ended. Used by shadow traffic alone. Pure.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

WRITTEN = frozenset(
    (
        "content", "text", "reasoning", "reasoning_content", "thinking", "refusal", "name", "arguments",
        "partial_json", "delta", "finish_reason", "stop_reason", "stop_sequence",
    )
)  # fmt: skip
"""Fields with a text that a model has written, in the answers and events of all dialects."""
_REASONING = frozenset(("reasoning", "reasoning_content", "thinking"))
_ENDS = frozenset(("finish_reason", "stop_reason", "stop_sequence"))
_INDICES = ("output_index", "content_index", "summary_index", "index")
"""Fields that number the part of an answer to which a piece belongs."""
Place = tuple[str | int, ...]
_decode = msgspec.json.Decoder().decode


class _Request(msgspec.Struct, frozen=True):
    temperature: float | None = None
    seed: int | None = None


_decode_request = msgspec.json.Decoder(_Request).decode


def is_reproducible(body: bytes) -> bool:
    """Return whether a request asks for the same text each time: greedy decoding, or a seed."""
    try:
        request = _decode_request(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return request.temperature == 0 or request.seed is not None


def written_text(body: bytes, *, streamed: bool) -> str | None:
    """Return what the model wrote, in a form in which equal answers are equal; None = it cannot be read.

    Args:
        body: the whole body of the answer.
        streamed: whether the body is a stream of server-sent events.
    """
    pieces: dict[Place, list[str]] = {}
    try:
        for document in _events(body) if streamed else (body,):
            _collect(_decode(document), (), pieces)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # The order in which parts of several choices arrive differs from answer to answer.
    places = sorted(pieces, key=_order)
    return "\n".join("".join(pieces[place]) for place in places)


def common_length(one: str, other: str) -> int:
    """Return the number of characters at the beginning that both texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _events(stream: bytes) -> Iterator[bytes]:
    for line in stream.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield data


def _collect(node: Any, place: Place, pieces: dict[Place, list[str]]) -> None:
    """Add the pieces of text in a part of an answer, each at the place to which it belongs."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            _collect(item, (*place, number), pieces)
    if not isinstance(node, dict):
        return
    numbers = tuple(node[name] for name in _INDICES if isinstance(node.get(name), int))
    if numbers:
        # A piece of a stream names its part; its place in the event says nothing.
        place = (*(part for part in place if isinstance(part, str)), *numbers)
    for name, value in node.items():
        if isinstance(value, str):
            if name in WRITTEN and not (name == "reasoning_content" and "reasoning" in node):
                pieces.setdefault((*place, name), []).append(value)
        elif name == "input" and isinstance(value, dict):
            arguments = msgspec.json.encode(value, order="deterministic").decode()
            pieces.setdefault((*place, name), []).append(arguments)
        else:
            _collect(value, (*place, name) if isinstance(value, dict) else place, pieces)


def _order(place: Place) -> tuple[tuple[int, ...], int]:
    """Return the key by which parts are sorted: by choice, then reasoning, text, and reasons for the end."""
    name = place[-1]
    rank = 0 if name in _REASONING else 2 if name in _ENDS else 1
    return tuple(part for part in place if isinstance(part, int)), rank
