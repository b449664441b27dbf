"""The JSON of log-probabilities, encoded piece by piece for long prompts. Pure.

While one call of the encoder runs, or while its result is copied, no other thread of the process runs, not
even the thread of the event loop.
"""

import uuid
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from mamba_server.api.answers import responses
from mamba_server.api.answers.responses import CompletionLogprobsBody, PromptLogprobs
from mamba_server.wire import TokenLogprobs
from mamba_text.tokenizer import Tokenizer

PIECE_TOKENS = 256
"""Number of tokens that are encoded in one call."""
PIECE_BYTES = 1 << 18
"""Approximate size of the pieces in which a long answer is kept."""
Item = TypeVar("Item")
Entries = list[TokenLogprobs | None]


class LongParts:
    """Keeps long parts of one answer's JSON beside it, so that these are not copied into it.

    A mark stands in the place of each, until `insert_parts` returns all in order.
    """

    def __init__(self) -> None:
        self._parts: dict[bytes, list[bytes]] = {}

    def mark(self, pieces: list[bytes]) -> msgspec.Raw:
        """Keep these pieces, and return the mark that stands for them; clients cannot guess it."""
        mark = b'"%s"' % uuid.uuid4().hex.encode()
        self._parts[mark] = pieces
        return msgspec.Raw(mark)

    def insert_parts(self, encoded: bytes) -> list[bytes]:
        """Return the answer in pieces, with the parts in the places of their marks.

        Marks appear in the order in which `mark` returned them.
        """
        pieces, rest = [], encoded
        for mark, part in self._parts.items():
            head, separator, rest = rest.partition(mark)
            assert separator
            pieces += [head, *part]
        return list(_join([*pieces, rest]))


def completion_scores(
    tokenizer: Tokenizer,
    token_ids: list[int],
    entries: Entries,
    offset: int,
    parts: LongParts,
    *,
    special: bool,
) -> CompletionLogprobsBody | msgspec.Raw:
    """Return the result of `responses.completion_logprobs`.

    If it is long, the pieces of its JSON go to `parts`, and the result is the mark that stands for them.
    """
    if len(token_ids) <= PIECE_TOKENS:
        return responses.completion_logprobs(tokenizer, token_ids, entries, offset, special=special)
    names = CompletionLogprobsBody.__struct_fields__
    lists: dict[str, list[bytes]] = {name: [] for name in names}
    for ids, scores in zip(_pieces(token_ids), _pieces(entries), strict=True):
        body = responses.completion_logprobs(tokenizer, ids, scores, offset, special=special)
        for name in names:
            lists[name] += [responses.encode(getattr(body, name))[1:-1], b","]
        offset += sum(responses.text_length(tokenizer, token_id, special=special) for token_id in ids)
    pieces = [b"{"]
    for name in names:
        pieces += [b'"%s":[' % name.encode(), *lists[name][:-1], b"]", b","]
    return parts.mark([*pieces[:-1], b"}"])


def prompt_scores(tokenizer: Tokenizer, entries: Entries, parts: LongParts) -> PromptLogprobs | msgspec.Raw:
    """Return the result of `prompt_logprobs`; a mark of `parts` if it is long."""
    if len(entries) <= PIECE_TOKENS:
        return responses.prompt_logprobs(tokenizer, entries)
    pieces = [b"["]
    for piece in _pieces(entries):
        pieces += [responses.encode(responses.prompt_logprobs(tokenizer, piece))[1:-1], b","]
    return parts.mark([*pieces[:-1], b"]"])


def join_pieces(pieces: list[bytes]) -> bytes | list[bytes] | None:
    """Return the same bytes: one piece if they are few, several if they are many, None if there are none."""
    if len(pieces) > 1:
        pieces = list(_join(pieces))
    return pieces if len(pieces) > 1 else pieces[0] if pieces else None


def let_go(entries: Entries) -> None:
    """Empty a list piece by piece: freeing millions of numbers at once takes a tenth of a second."""
    while entries:
        del entries[-PIECE_TOKENS:]


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    return (items[start : start + PIECE_TOKENS] for start in range(0, len(items), PIECE_TOKENS))


def _join(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)
