"""The conversation that a request belongs to, and its revision while a canary is under way. Pure.

The router calls both functions only during a canary. A conversation is known by its system prompt and its
first message of the user, which every later turn repeats: so each turn goes to the revision that has computed
the turns before. All gateways choose alike, without knowing of each other, and a conversation that was
chosen at a low weight stays chosen at each higher one.
"""

import hashlib
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

MAX_CONVERSATION_BYTES = 8 * 1024 * 1024
"""Size in bytes from which a body is not read: its revision is chosen at random."""
MAX_PROMPT_CHARS = 4096
"""Number of characters or token ids at the beginning of a prompt that identify its conversation."""
_SCALE = 2**64
_SYSTEM = ("system", "developer")


class _Body(msgspec.Struct, frozen=True):
    """The fields of all dialects that begin a conversation."""

    system: Any = None
    instructions: Any = None
    messages: Any = None
    input: Any = None
    prompt: Any = None
    cache_salt: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def conversation_of(path: str, body: bytes) -> int | None:
    """Return a hash of the conversation that is the same for all requests of it.

    The result is None if the body is longer than `MAX_CONVERSATION_BYTES`, cannot be decoded, or has neither
    a system prompt nor a message of the user.
    """
    if len(body) > MAX_CONVERSATION_BYTES:
        return None
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    beginning = list(_beginning(fields))
    if not any(beginning):
        return None
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8)
    for text in (str(fields.cache_salt or ""), *beginning):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return int.from_bytes(digest.digest())


def is_chosen(conversation: int | None, share: float, rng: Random) -> bool:
    """Return whether candidates answer a conversation, with `share` (0 to 1) of all; None = at random."""
    return rng.random() < share if conversation is None else in_share(conversation, share)


def in_share(conversation: int, share: float) -> bool:
    """Return whether a conversation is one of the first `share` (0 to 1) of all."""
    return conversation / _SCALE < share


def _beginning(fields: _Body) -> Iterator[str]:
    """Yield the texts up to the first message of the user."""
    yield _text(fields.system)
    yield _text(fields.instructions)
    turns = fields.messages if fields.messages is not None else fields.input
    if isinstance(turns, list):
        for turn in turns:
            if not isinstance(turn, dict):
                yield _text(turn)
                return
            yield _text(turn.get("content"))
            if turn.get("role") not in _SYSTEM:
                return
    yield _text(turns)[:MAX_PROMPT_CHARS]
    yield _text(fields.prompt)[:MAX_PROMPT_CHARS]


def _text(content: Any) -> str:
    """Return the text of a message, without fields beside it that later requests change.

    An example of such a field is cache_control.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            _text(part.get("text") if isinstance(part, dict) else part) for part in content[:MAX_PROMPT_CHARS]
        )
    return str(content) if isinstance(content, int) else ""
