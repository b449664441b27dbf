"""The entries of a history: kept responses and conversations, as bytes in a store. Pure.

The first line of an entry has identifiers: of the turns before a response, or of the turns of a conversation.
A response that belongs to a conversation has none. The JSON of the `Turn` or of the `Conversation` follows.
Stores read the first line alone.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

IDENTIFIER = re.compile(r"(?:resp|conv)_[A-Za-z0-9]{1,64}")
"""Form of the identifiers of entries."""
MOST_TURNS = 1024
"""Largest number of turns that one conversation may have."""
EMPTY_LIST, NO_RESPONSE = msgspec.Raw(b"[]"), msgspec.Raw(b"null")


class HistoryStore(Protocol):
    """Keeps entries, which are bytes, by client and identifier: responses and conversations.

    Its methods raise HistoryAway.
    """

    async def load(self, client: str, ids: Sequence[str]) -> list[bytes | None]:
        """Return the entries with the identifiers `ids`, in that order; None in place of one that is missing.

        The lifetime of each entry that is returned begins anew.
        """

    async def save(self, client: str, id_: str, entry: bytes, conversation: str = "") -> bool:
        """Keep an entry, and add its identifier to the entry of `conversation` unless that is "".

        Return False, and keep nothing, if the entry is larger than the budget of a client or the conversation
        does not exist.
        """

    async def replace(self, client: str, id_: str, content: bytes) -> bool:
        """Replace all of an entry but its first line, in one step; the entry's lifetime begins anew.

        Return False, and change nothing, if there is no such entry, or if it would be larger than the budget
        of a client.
        """

    async def delete(self, client: str, id_: str) -> bool:
        """Delete an entry; return False if there is none."""


class Turn(msgspec.Struct):
    """One request's own items and the response to them, as a kept response holds them."""

    input: msgspec.Raw = EMPTY_LIST
    """JSON of the list of items that came with the request."""
    response: msgspec.Raw = NO_RESPONSE
    """JSON of the response; null = the items were added without a request to a model, or the response was
    deleted."""
    conversation: str = ""
    """Identifier of the conversation that the response belongs to; "" = none."""

    @property
    def has_response(self) -> bool:
        """Whether the turn has a response, beside items of its conversation."""
        return bytes(self.response) != bytes(NO_RESPONSE)


class Conversation(msgspec.Struct):
    """Metadata of a kept conversation. Its turns are entries of their own."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}
    object: str = "conversation"


class _Output(msgspec.Struct):
    output: msgspec.Raw = EMPTY_LIST


_turn = msgspec.json.Decoder(Turn).decode
_conversation = msgspec.json.Decoder(Conversation).decode
_output = msgspec.json.Decoder(_Output).decode


def entry_of(ids: Sequence[str], content: Turn | Conversation) -> bytes:
    """Return the bytes of an entry whose first line holds the identifiers `ids`."""
    return " ".join(ids).encode() + b"\n" + msgspec.json.encode(content)


def ids_of(entry: bytes) -> list[str]:
    """Return the identifiers in the first line of an entry."""
    return entry.partition(b"\n")[0].decode().split()


def with_content(entry: bytes, content: bytes) -> bytes:
    """Return an entry with the same first line and with `content` behind it."""
    return entry.partition(b"\n")[0] + b"\n" + content


def with_id(entry: bytes, id_: str) -> bytes:
    """Return an entry with `id_` added at the end of its first line."""
    line, _, content = entry.partition(b"\n")
    return (line + b" " + id_.encode()).strip() + b"\n" + content


def turn_of(entry: bytes) -> Turn:
    """Return the turn that the entry of a response holds."""
    return _turn(entry.partition(b"\n")[2])


def conversation_of(entry: bytes) -> Conversation:
    """Return the conversation that an entry of a conversation holds."""
    return _conversation(entry.partition(b"\n")[2])


def items_of(turn: Turn) -> list[bytes]:
    """Return the JSON of the items of a turn, as lists without their brackets; empty lists are left out."""
    lists = [bytes(turn.input)]
    if turn.has_response:
        lists.append(bytes(_output(turn.response).output))
    return [inner for each in lists if (inner := each.strip()[1:-1].strip())]


def joined_items(parts: Sequence[bytes]) -> bytes:
    """Return the JSON of one list with the items of all `parts`, each a list without its brackets."""
    return b"[" + b",".join(parts) + b"]"


def with_identifiers(items: bytes, owner: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the items of a JSON list as the API lists them: with an identifier each, and with text in parts.

    An item without an identifier gets one that is made of `owner`, the identifier of its response or
    conversation, and of its place there; `first` is the place of the first item.
    """
    listed: list[dict[str, Any]] = []
    for place, item in enumerate(msgspec.json.decode(items, type=list[dict[str, Any]]), first):
        kind = item.get("type") or "message"
        entry = {"id": f"item_{owner.partition('_')[2]}_{place}", "status": "completed", **item, "type": kind}
        if kind == "message" and isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            more: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
            entry["content"] = [{"type": part, "text": item["content"], **more}]
        listed.append(entry)
    return listed
