"""The JSON of log-probabilities, of long prompts made piece by piece: while one call of the encoder lasts, or
a copy of it all, no other thread goes on, the event loop's included. Pure.
"""

import uuid
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from mamba_server.api.answers import responses
from mamba_server.api.answers.responses import CompletionLogprobsBody, PromptLogprobs
from mamba_server.wire import TokenLogprobs
from mamba_text.tokenizer import Tokenizer

PIECE = 256
"""Tokens that are encoded at once."""
AT_ONCE = 1 << 18
"""Bytes of the pieces in which a long answer is kept, about."""
Item = TypeVar("Item")
Entries = list[TokenLogprobs | None]


class LongParts:
    """Parts of one answer's JSON that are not copied into it: marks stand for them."""

    def __init__(self) -> None:
        self._parts: dict[bytes, list[bytes]] = {}

    def mark(self, pieces: list[bytes]) -> msgspec.Raw:
        """The mark that stands for these pieces; no client can know it."""
        mark = b'"%s"' % uuid.uuid4().hex.encode()
        self._parts[mark] = pieces
        return msgspec.Raw(mark)

    def in_place(self, encoded: bytes) -> list[bytes]:
        """The pieces of the answer, with the parts where their marks are. Marks stand in the order in which
        they were made."""
        pieces, rest = [], encoded
        for mark, part in self._parts.items():
            head, found, rest = rest.partition(mark)
            assert found
            pieces += [head, *part]
        return list(_joined([*pieces, rest]))


def completion_scores(
    tokenizer: Tokenizer,
    token_ids: list[int],
    entries: Entries,
    offset: int,
    parts: LongParts,
    *,
    special: bool,
) -> CompletionLogprobsBody | msgspec.Raw:
    """What `completion_logprobs` makes; one of `parts` where it is long."""
    if len(token_ids) <= PIECE:
        return responses.completion_logprobs(tokenizer, token_ids, entries, offset, special=special)
    names = CompletionLogprobsBody.__struct_fields__
    lists: dict[str, list[bytes]] = {name: [] for name in names}
    for ids, scores in zip(_pieces(token_ids), _pieces(entries), strict=True):
        body = responses.completion_logprobs(tokenizer, ids, scores, offset, special=special)
        for name in names:
            lists[name] += [responses.encode(getattr(body, name))[1:-1], b","]
        offset += sum(responses.shown_length(tokenizer, each, special=special) for each in ids)
    pieces = [b"{"]
    for name in names:
        pieces += [b'"%s":[' % name.encode(), *lists[name][:-1], b"]", b","]
    return parts.mark([*pieces[:-1], b"}"])


def prompt_scores(tokenizer: Tokenizer, entries: Entries, parts: LongParts) -> PromptLogprobs | msgspec.Raw:
    """What `prompt_logprobs` makes; one of `parts` where it is long."""
    if len(entries) <= PIECE:
        return responses.prompt_logprobs(tokenizer, entries)
    pieces = [b"["]
    for each in _pieces(entries):
        pieces += [responses.encode(responses.prompt_logprobs(tokenizer, each))[1:-1], b","]
    return parts.mark([*pieces[:-1], b"]"])


def together(pieces: list[bytes]) -> bytes | list[bytes] | None:
    """The same bytes in one piece, in several where they are many, None where there are none."""
    if len(pieces) > 1:
        pieces = list(_joined(pieces))
    return pieces if len(pieces) > 1 else pieces[0] if pieces else None


def let_go(entries: Entries) -> None:
    """Empty a list piece by piece: to free millions of numbers at once takes a tenth of a second."""
    while entries:
        del entries[-PIECE:]


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    return (items[start : start + PIECE] for start in range(0, len(items), PIECE))


def _joined(pieces: list[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= AT_ONCE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
