"""Builds the answer of `POST /v1/messages` from updates, complete or as events. Pure.

The blocks of an answer follow one another, as the model writes them: thinking, text, calls. White space alone
is no block.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from mamba_api.dialects.paths import MESSAGES
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.answer_reader import AnswerReader, ParsedUpdate
from mamba_server.api.answers.responses import ChatFinish, UsageBody
from mamba_server.api.answers.stream_frame import StreamFrame, vendor_fields
from mamba_text import strict_json
from mamba_text.call_parts import CallPart

Body = dict[str, Any]
_REASONS: dict[ChatFinish, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessagesResponseBuilder(StreamFrame):
    """Encodes the events of one answer of the Messages API, or the whole answer."""

    quiet = b'event: ping\ndata: {"type":"ping"}\n\n'
    done = b""

    def __init__(self, reader: AnswerReader, *, response_id: str, model: str, request_id: str) -> None:
        """Start an answer without output. `request_id`: identifier of the HTTP request, for errors."""
        self._reader = reader
        self._id, self._model, self._request_id = response_id, model, request_id
        self._blocks: list[Body] = []
        """Blocks so far; texts of a stream are not kept."""
        self._open = ""
        """Type of the last block while its text may go on; "" = there is no such block."""
        self._blank = ""
        """White space that becomes a part of the text that follows."""
        self._finish: ChatFinish = "stop"
        self._stop: str | None = None

    def chunk(self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool) -> bytes | None:
        """Encode the events of one update; None if it brings nothing that can be sent."""
        events: list[Body] = []
        if update.first:
            assert usage is not None
            message = self._message([], None, None, _usage(usage, output_tokens=0))
            events.append({"type": "message_start", "message": message})
        parsed = self._read(update)
        for block, text in self._texts(parsed):
            events += self._text_events(block, text)
        for part in parsed.parts:
            events += self._call_events(part)
        return _events(events)

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """Encode the events after the last block."""
        reason, stop = self._reason()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        events = self._closing()
        events.append(
            {"type": "message_delta", "delta": delta, "usage": _usage(usage), **vendor_fields(self.vendor)}
        )
        return _events([*events, {"type": "message_stop"}]) or b""

    def failure(self, error: ApiError) -> bytes:
        """Encode an error after the first event."""
        return form_of(MESSAGES).event(error, self._request_id)

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        parsed = self._read(update)
        for block, text in self._texts(parsed):
            kind = block["type"]
            if self._open != kind:
                self._blocks.append(block)
                self._open = kind
            self._blocks[-1][kind] += text
        for call in parsed.calls:
            self._blocks.append(_tool_use(call.name, _arguments(call.arguments)))
            self._open = ""

    def weight(self, update: ChoiceUpdate) -> int:
        """Return 0, since messages have no log-probabilities."""
        return 0

    def seal(self, index: int) -> None:
        """Do nothing when the choice ends: `full` encodes it."""

    def full(self, usage: UsageBody) -> list[bytes]:
        """Encode the complete answer."""
        reason, stop = self._reason()
        message = self._message(self._blocks, reason, stop, _usage(usage))
        return [responses.encode({**message, **vendor_fields(self.vendor)})]

    def _message(self, blocks: Sequence[Body], reason: str | None, stop: str | None, usage: Body) -> Body:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    def _reason(self) -> tuple[str, str | None]:
        """Return why the answer ended, and the stop string if one ended it."""
        if self._finish == "stop" and self._stop is not None:
            return "stop_sequence", self._stop
        return _REASONS.get(self._finish, "end_turn"), None

    def _read(self, update: ChoiceUpdate) -> ParsedUpdate:
        parsed = self._reader.read(update)
        if parsed.finish is not None:
            self._finish, self._stop = parsed.finish, update.stop
        return parsed

    def _texts(self, parsed: ParsedUpdate) -> list[tuple[Body, str]]:
        """Return empty blocks with their new text, in their order."""
        parts: list[tuple[Body, str]] = []
        if parsed.reasoning:
            parts.append(({"type": "thinking", "thinking": "", "signature": ""}, parsed.reasoning))
        text = self._blank + parsed.text
        self._blank = ""
        if text.strip() or (text and self._open == "text" and not parts):
            parts.append(({"type": "text", "text": ""}, text))
        elif not parsed.parts:
            self._blank = text
        return parts

    def _text_events(self, block: Body, text: str) -> list[Body]:
        kind = block["type"]
        events = self._opening(block) if self._open != kind else []
        delta, name = _DELTAS[kind]
        change = {"type": delta, name: text}
        events.append({"type": "content_block_delta", "index": self._index, "delta": change})
        return events

    def _call_events(self, part: CallPart) -> list[Body]:
        events = self._opening(_tool_use(part.name, {})) if part.name else []
        text = part.arguments
        if part.name and part.last:
            text = _object_text(text)
        if text:
            change = {"type": "input_json_delta", "partial_json": text}
            events.append({"type": "content_block_delta", "index": self._index, "delta": change})
        return events + self._closing() if part.last else events

    def _opening(self, block: Body) -> list[Body]:
        """Return the events that end the open block and begin another one."""
        events = self._closing()
        self._blocks.append(block)
        self._open = block["type"]
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _closing(self) -> list[Body]:
        """Return the event that ends the open block, if there is one."""
        if not self._open:
            return []
        self._open = ""
        return [{"type": "content_block_stop", "index": self._index}]


def _tool_use(name: str, arguments: Body) -> Body:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": name, "input": arguments}


def _arguments(written: str) -> Body:
    """Return the arguments of a call, which are an object whatever the model wrote."""
    try:
        arguments = strict_json.parse_whole(written)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": written}


def _object_text(written: str) -> str:
    """Return the JSON of `_arguments`, as the model wrote it where that is an object."""
    arguments = _arguments(written)
    is_own = arguments == {"arguments": written}
    return responses.encode(arguments).decode() if is_own else written


def _usage(usage: UsageBody, **other: int) -> Body:
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        **responses.engine_cost(usage),
        **other,
    }


def _events(bodies: Sequence[Body]) -> bytes | None:
    """Encode events, each named by its type; None = there are none."""
    encoded = (b"event: " + body["type"].encode() + b"\n" + responses.event(body) for body in bodies)
    return b"".join(encoded) or None
