"""`ResponseHistory`: the conversations that requests of the Responses API continue.

A request that names an earlier response, or a conversation, is turned into a request that has the whole
input. Everything behind this module reads, routes and computes that request like any other, and each engine
can answer it. The server that clients call uses this module: the gateway, or an engine without a gateway.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mamba_api.dialects.responses_request import ResponsesRequest
from mamba_edge.errors import InvalidRequest, NotFound
from mamba_edge.history.entries import (
    IDENTIFIER,
    MOST_TURNS,
    Conversation,
    HistoryStore,
    Turn,
    conversation_of,
    entry_of,
    ids_of,
    items_of,
    joined_items,
    turn_of,
)
from mamba_edge.history.errors import HistoryAway
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

_ABSENT = msgspec.Raw(b"")
_NAMES = tuple(sorted({*ResponsesRequest.model_fields, *ResponsesRequest.REFUSED_FIELDS}))
_Pieces: Any = msgspec.defstruct("_Pieces", [(name, msgspec.Raw, _ABSENT) for name in _NAMES])
_pieces = msgspec.json.Decoder(_Pieces).decode
_UNSET = (b"", b"null")
GONE = "it was deleted, its time to live has ended, or its key has kept too much since; send the whole input"
"""Reason why a part of a conversation may be missing, for messages."""


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A request whose earlier turns were loaded: its body now has the whole conversation as input.

    It also has all that `keep` needs to keep the response.
    """

    body: bytes
    """Body of the request, with the whole conversation as its input."""
    keeps: bool
    """Whether the response is kept."""
    history: "ResponseHistory"
    client: str
    """Name of the client, under which the response is kept."""
    chain: tuple[str, ...]
    """Identifiers of the turns before this one, the first one first."""
    conversation: str
    """Identifier of the conversation that the turn is added to; "" = none."""
    input: bytes
    """JSON of the items that came with the request."""

    async def keep(self, response: bytes) -> None:
        """Keep the JSON of the response. A failure is logged: the client gets its answer in any case."""
        await self.history.keep(self, response)


class ResponseHistory:
    """Keeps the responses and conversations of all clients of one server.

    Later requests may continue a kept response or conversation by its identifier. A response is kept unless
    its request has `"store": false` and names no conversation.
    """

    def __init__(
        self, store: HistoryStore | None, largest: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep entries in `store`; None = nothing is kept. `largest` is the most bytes of a whole input."""
        self._store, self._largest, self._clock = store, largest, clock

    @property
    def keeps(self) -> bool:
        """Whether responses are kept here at all."""
        return self._store is not None

    async def open(self, client: str, body: bytes) -> OpenTurn | None:
        """Return the turn that a request body begins; None if there is nothing to load or keep.

        This is so if the body continues no conversation and asks that nothing be kept, if this server keeps
        nothing, and if the body is no JSON object, which the validation of the request refuses. Raises
        InvalidRequest, HistoryAway.
        """
        try:
            pieces = _pieces(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        previous, conversation = _previous(pieces), _conversation(pieces)
        keeps = bytes(pieces.store) != b"false"
        if self._store is None:
            self._refuse(previous, conversation, required=bytes(pieces.store) == b"true")
            return None
        if previous and conversation:
            raise InvalidRequest(
                "conversation: not allowed together with previous_response_id", param="conversation"
            )
        if not (keeps or previous or conversation):
            return None
        own = _items(bytes(pieces.input))
        chain: tuple[str, ...] = ()
        if previous or conversation:
            chain = await self._chain(client, previous, conversation)
            whole = joined_items([*await self._items(client, chain, previous or conversation), *own])
            if len(whole) > self._largest:
                raise InvalidRequest(
                    f"input: the whole conversation has {len(whole)} bytes, and at most {self._largest} are "
                    "accepted; begin a new one",
                    param="input",
                )
            pieces.input = msgspec.Raw(whole)
            fields = {name: piece for name in _NAMES if bytes(piece := getattr(pieces, name))}
            body = msgspec.json.encode(fields)
        return OpenTurn(
            body, keeps or bool(conversation), self, client, chain, conversation, joined_items(own)
        )

    def _refuse(self, previous: str, conversation: str, *, required: bool) -> None:
        """Refuse a request that needs a kept response, on a server that keeps none. Raises InvalidRequest."""
        names = {"previous_response_id": previous, "conversation": conversation, "store": required}
        for name, value in names.items():
            if value:
                raise InvalidRequest(
                    f"{name}: is not supported, because this server keeps no responses; send the whole "
                    "input, with the items of earlier answers",
                    param=name,
                )

    async def _chain(self, client: str, previous: str, conversation: str) -> tuple[str, ...]:
        """Return the identifiers of all turns that come before a request, the first one first.

        `previous` is the response, and `conversation` the conversation, that the request continues; "" =
        none. Raises InvalidRequest if the named one is not kept, or if the conversation has too many turns.
        """
        assert self._store is not None
        (entry,) = await self._store.load(client, [previous or conversation])
        if entry is None or (previous and not turn_of(entry).has_response):
            raise _missing(previous, conversation)
        chain = ids_of(entry)
        if previous:
            chain.append(previous)
        if len(chain) >= MOST_TURNS:
            raise InvalidRequest(
                f"the conversation has {len(chain)} turns, and at most {MOST_TURNS} may follow one another; "
                "begin a new one",
                param="previous_response_id" if previous else "conversation",
            )
        return tuple(chain)

    async def _items(self, client: str, chain: Sequence[str], name: str) -> list[bytes]:
        """Return the items of the turns in `chain`. Raises InvalidRequest if one of the turns is gone.

        `name` is the response or conversation that the request continues, for the message.
        """
        assert self._store is not None
        entries = await self._store.load(client, chain) if chain else []
        items: list[bytes] = []
        for id_, entry in zip(chain, entries, strict=True):
            if entry is None:
                raise InvalidRequest(
                    f"a part of the conversation of {name} is missing ({id_}): {GONE}",
                    param="previous_response_id" if name.startswith("resp") else "conversation",
                    code="previous_response_not_found",
                )
            items += items_of(turn_of(entry))
        return items

    async def keep(self, turn: OpenTurn, response: bytes) -> None:
        """Keep the JSON of the response to a turn; see `OpenTurn.keep`."""
        assert self._store is not None
        try:
            id_ = msgspec.json.decode(response, type=_Identified).id
            content = Turn(msgspec.Raw(turn.input), msgspec.Raw(response), turn.conversation)
            entry = entry_of(() if turn.conversation else turn.chain, content)
            kept = await self._store.save(turn.client, id_, entry, turn.conversation)
        except HistoryAway as error:
            log.warning("response_not_kept", reason=error.message)
            return
        except msgspec.DecodeError as error:
            log.warning("response_not_kept", reason=f"the answer is no response: {error}")
            return
        if not kept:
            log.warning(
                "response_not_kept", reason="it is larger than the budget, or its conversation is gone"
            )

    async def response(self, client: str, id_: str) -> bytes:
        """Return the JSON of a kept response. Raises NotFound."""
        return bytes((await self._turn(client, id_)).response)

    async def input_items(self, client: str, id_: str) -> bytes:
        """Return the JSON of the items that came with the request of a response. Raises NotFound."""
        return bytes((await self._turn(client, id_)).input)

    async def delete_response(self, client: str, id_: str) -> None:
        """Delete a response; its items stay in the conversation that it belongs to. Raises NotFound."""
        store, turn = self._enabled(), await self._turn(client, id_)
        if turn.conversation and (await store.load(client, [turn.conversation]))[0] is not None:
            rest = Turn(msgspec.Raw(joined_items(items_of(turn))), conversation=turn.conversation)
            is_changed = await store.replace(client, id_, msgspec.json.encode(rest))
        else:
            is_changed = await store.delete(client, id_)
        if not is_changed:
            raise _unknown(id_, "resp_")

    async def delete_conversation(self, client: str, id_: str) -> None:
        """Delete a conversation with its items; the responses in it are kept. Raises NotFound."""
        store, ids = self._enabled(), ids_of(await self._entry(client, id_, "conv_"))
        if not await store.delete(client, id_):
            raise _unknown(id_, "conv_")
        for turn_id, entry in zip(ids, await store.load(client, ids) if ids else (), strict=True):
            if entry is not None and not turn_of(entry).has_response:
                await store.delete(client, turn_id)

    async def create_conversation(
        self, client: str, items: Sequence[bytes], metadata: dict[str, str]
    ) -> Conversation:
        """Create a conversation that begins with these items, and return it. Raises InvalidRequest."""
        created = Conversation(f"conv_{uuid.uuid4().hex}", int(self._clock()), metadata)
        if not await self._enabled().save(client, created.id, entry_of((), created)):
            raise _too_large()
        if items:
            await self.add_items(client, created.id, items)
        return created

    async def conversation(self, client: str, id_: str) -> Conversation:
        """Return a conversation. Raises NotFound."""
        return conversation_of(await self._entry(client, id_, "conv_"))

    async def change_metadata(self, client: str, id_: str, metadata: dict[str, str]) -> Conversation:
        """Replace the metadata of a conversation, and return it. Raises NotFound and InvalidRequest."""
        entry = await self._entry(client, id_, "conv_")
        changed = msgspec.structs.replace(conversation_of(entry), metadata=metadata)
        # Only the metadata are replaced: a turn that ends meanwhile is not lost.
        if not await self._enabled().replace(client, id_, msgspec.json.encode(changed)):
            raise _too_large()
        return changed

    async def add_items(self, client: str, id_: str, items: Sequence[bytes]) -> int:
        """Add items to a conversation, and return the place of the first one among all its items.

        Raises NotFound and InvalidRequest.
        """
        await self.conversation_items(client, id_)  # raises before anything is kept
        turn_id, turn = f"resp_{uuid.uuid4().hex}", Turn(msgspec.Raw(joined_items(items)), conversation=id_)
        if not await self._enabled().save(client, turn_id, entry_of((), turn), id_):
            raise InvalidRequest("items: they take more than one key may keep; send fewer", param="items")
        ids = ids_of(await self._entry(client, id_, "conv_"))
        before = joined_items(await self._items(client, ids[: ids.index(turn_id)], id_))
        return len(msgspec.json.decode(before, type=list[msgspec.Raw]))

    async def conversation_items(self, client: str, id_: str) -> bytes:
        """Return the JSON of all items of a conversation. Raises NotFound, InvalidRequest."""
        entry = await self._entry(client, id_, "conv_")
        return joined_items(await self._items(client, ids_of(entry), id_))

    async def _entry(self, client: str, id_: str, prefix: str) -> bytes:
        store = self._enabled()
        entry = (await store.load(client, [id_]))[0] if _is_identifier(id_, prefix) else None
        if entry is None:
            raise _unknown(id_, prefix)
        return entry

    async def _turn(self, client: str, id_: str) -> Turn:
        turn = turn_of(await self._entry(client, id_, "resp_"))
        if not turn.has_response:
            raise _unknown(id_, "resp_")
        return turn

    def _enabled(self) -> HistoryStore:
        if self._store is None:
            raise NotFound("this server keeps no responses and no conversations: --response-ttl is 0")
        return self._store


class _Identified(msgspec.Struct):
    id: str


class _Reference(msgspec.Struct):
    id: str


def _previous(pieces: Any) -> str:
    """Return the identifier of the earlier response; "" = none."""
    return _identifier(bytes(pieces.previous_response_id), "previous_response_id", "resp_")


def _conversation(pieces: Any) -> str:
    """Return the identifier of the conversation; "" = none. Raises InvalidRequest."""
    raw = bytes(pieces.conversation)
    if raw[:1] == b"{":
        try:
            raw = msgspec.json.encode(msgspec.json.decode(raw, type=_Reference).id)
        except msgspec.DecodeError:
            raise InvalidRequest("conversation: an object needs 'id'", param="conversation") from None
    return _identifier(raw, "conversation", "conv_")


def _identifier(raw: bytes, param: str, prefix: str) -> str:
    if raw in _UNSET:
        return ""
    try:
        id_ = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest(f"{param}: must be a valid string", param=param, code="invalid_type") from None
    if not _is_identifier(id_, prefix):
        raise _missing(id_ if prefix == "resp_" else "", id_ if prefix == "conv_" else "")
    return id_


def _is_identifier(id_: str, prefix: str) -> bool:
    return id_.startswith(prefix) and IDENTIFIER.fullmatch(id_) is not None


def _missing(previous: str, conversation: str) -> InvalidRequest:
    if conversation:
        text = f"conversation: there is no conversation {conversation[:80]!r} of this key: {GONE}"
        return InvalidRequest(text, param="conversation", code="conversation_not_found")
    text = f"previous_response_id: there is no response {previous[:80]!r} of this key: {GONE}"
    return InvalidRequest(text, param="previous_response_id", code="previous_response_not_found")


def _too_large() -> InvalidRequest:
    return InvalidRequest("the conversation takes more than one key may keep", param="metadata")


def _unknown(id_: str, prefix: str) -> NotFound:
    kind = "response" if prefix == "resp_" else "conversation"
    return NotFound(f"there is no {kind} {id_[:80]!r} of this key")


def _items(raw: bytes) -> list[bytes]:
    """Return the JSON of the items of a request's `input`, as at most one list without its brackets.

    A text becomes a message of the user. An input that is neither text nor a list is passed on as it is, so
    that the validation of the request refuses it.
    """
    raw = raw.strip()
    if raw[:1] == b'"':
        return [b'{"type":"message","role":"user","content":' + raw + b"}"]
    if raw[:1] == b"[":
        inner = raw[1:-1].strip()
        return [inner] if inner else []
    return [raw] if raw else []
