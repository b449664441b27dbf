"""The JSON of log-probabilities, of long prompts made piece by piece: what one call of the encoder takes no
other thread gets, the event loop's included. Pure.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from mamba_server.api import responses
from mamba_server.api.responses import CompletionLogprobsBody, PromptLogprobs
from mamba_server.wire import TokenLogprobs
from mamba_text.tokenizer import Tokenizer

PIECE = 256
"""Tokens that are encoded at once."""
Item = TypeVar("Item")
Entries = list[TokenLogprobs | None]


def completion_scores(
    tokenizer: Tokenizer, token_ids: list[int], entries: Entries, offset: int, *, special: bool
) -> CompletionLogprobsBody | msgspec.Raw:
    """What `completion_logprobs` makes, as JSON where it is long."""
    if len(token_ids) <= PIECE:
        return responses.completion_logprobs(tokenizer, token_ids, entries, offset, special=special)
    names = CompletionLogprobsBody.__struct_fields__
    parts: dict[str, list[bytes]] = {name: [] for name in names}
    for ids, scores in zip(_pieces(token_ids), _pieces(entries), strict=True):
        body = responses.completion_logprobs(tokenizer, ids, scores, offset, special=special)
        for name in names:
            parts[name].append(responses.encode(getattr(body, name))[1:-1])
        offset += sum(responses.shown_length(tokenizer, each, special=special) for each in ids)
    return msgspec.Raw(
        b"{" + b",".join(b'"%s":[%s]' % (name.encode(), b",".join(parts[name])) for name in names) + b"}"
    )


def prompt_scores(tokenizer: Tokenizer, entries: Entries) -> PromptLogprobs | msgspec.Raw:
    """What `prompt_logprobs` makes, as JSON where it is long."""
    if len(entries) <= PIECE:
        return responses.prompt_logprobs(tokenizer, entries)
    parts = (responses.encode(responses.prompt_logprobs(tokenizer, each))[1:-1] for each in _pieces(entries))
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    return (items[start : start + PIECE] for start in range(0, len(items), PIECE))
