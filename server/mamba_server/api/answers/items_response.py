"""Builds the answer of `POST /v1/responses` from updates, complete or as events. Pure.

The items of an answer follow one another, as the model writes them: reasoning, message, calls. White space
alone is no message.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from mamba_api.dialects.paths import RESPONSES
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.answer_reader import AnswerReader
from mamba_server.api.answers.responses import UsageBody
from mamba_server.api.answers.stream_frame import StreamFrame, vendor_fields
from mamba_text.call_parts import CallPart

Body = dict[str, Any]
_TEXTS = {"message": ("output_text", "msg_"), "reasoning": ("reasoning_text", "rs_")}


class ItemsResponseBuilder(StreamFrame):
    """Encodes the events of one answer of the Responses API, or the whole answer."""

    done = b""

    def __init__(
        self,
        reader: AnswerReader,
        *,
        response_id: str,
        created: int,
        model: str,
        settings: Mapping[str, Any],
        request_id: str,
    ) -> None:
        """Start an answer without output.

        Args:
            reader: divides what the model writes.
            response_id: identifier of the answer.
            created: Unix time in seconds.
            model: name of the served model.
            settings: fields of the request that the answer repeats.
            request_id: identifier of the HTTP request.
        """
        self._reader, self._settings, self._request_id = reader, settings, request_id
        self._id, self._created, self._model = response_id, created, model
        self._items: list[Body] = []
        self._text: list[str] = []
        """Pieces of the text of the open item."""
        self._open = ""
        """Type of the last item while its text or its arguments may go on; "" = there is no such item."""
        self._blank = ""
        """White space that becomes a part of the text that follows."""
        self._length = False
        """Whether the answer ended before its time."""
        self._number = 0
        """Sequence number of the next event."""

    def chunk(self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool) -> bytes | None:
        """Encode the events of one update; None if it brings nothing that can be sent."""
        events: list[bytes] = []
        if update.first:
            beginning = self._response("in_progress")
            events += [
                self._event("response.created", response=beginning),
                self._event("response.in_progress", response=beginning),
            ]
        events += self._read(update)
        return b"".join(events) or None

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """Encode the events after the last update."""
        events = self._close()
        status = "incomplete" if self._length else "completed"
        events.append(self._event(f"response.{status}", response=self._response(status, usage)))
        return b"".join(events)

    def failure(self, error: ApiError) -> bytes:
        """Encode an error after the first event."""
        if not self._number:
            return form_of(RESPONSES).event(error, self._request_id)
        described = {"code": error.code or error.kind, "message": error.message}
        return self._event("response.failed", response=self._response("failed", error=described))

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        self._read(update)

    def weight(self, update: ChoiceUpdate) -> int:
        """Return 0, since responses have no log-probabilities."""
        return 0

    def seal(self, index: int) -> None:
        """Do nothing when the choice ends: `full` encodes it."""

    def full(self, usage: UsageBody) -> list[bytes]:
        """Encode the complete answer."""
        self._close()
        return [responses.encode(self._response("incomplete" if self._length else "completed", usage))]

    def _read(self, update: ChoiceUpdate) -> list[bytes]:
        """Add an update to the items, and return the events that say so."""
        parsed = self._reader.read(update)
        if parsed.finish is not None:
            self._length = parsed.finish == "length"
        events: list[bytes] = []
        if parsed.reasoning:
            events += self._add_text("reasoning", parsed.reasoning)
        text = self._blank + parsed.text
        self._blank = ""
        if text.strip() or (text and self._open == "message"):
            events += self._add_text("message", text)
        elif not parsed.parts:
            self._blank = text
        for part in parsed.parts:
            events += self._add_call_part(part)
        return events

    def _add_text(self, kind: str, text: str) -> list[bytes]:
        events: list[bytes] = []
        part_type, prefix = _TEXTS[kind]
        if self._open != kind:
            events = self._close()
            item: Body = {"id": f"{prefix}{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
            more: Body = {"role": "assistant"} if kind == "message" else {"summary": []}
            item |= more
            item["content"] = []
            self._items.append(item)
            self._open = kind
            events.append(self._item_event("added"))
            events.append(self._part_event("response.content_part.added", part=_part(part_type, "")))
        self._text.append(text)
        details: Body = {"logprobs": []} if kind == "message" else {}
        events.append(self._part_event(f"response.{part_type}.delta", delta=text, **details))
        return events

    def _add_call_part(self, part: CallPart) -> list[bytes]:
        events: list[bytes] = []
        if part.name:
            events = self._close()
            item = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "status": "in_progress"}
            item |= {"call_id": f"call_{uuid.uuid4().hex[:24]}", "name": part.name, "arguments": ""}
            self._items.append(item)
            self._open = "function_call"
            events.append(self._item_event("added"))
        if part.arguments:
            self._text.append(part.arguments)
            where = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
            events.append(
                self._event("response.function_call_arguments.delta", **where, delta=part.arguments)
            )
        return events + self._close() if part.last else events

    def _close_call(self) -> list[bytes]:
        item, self._open = self._items[-1], ""
        item["arguments"], self._text = "".join(self._text), []
        item["status"] = "incomplete" if self._length else "completed"
        where = {"item_id": item["id"], "output_index": len(self._items) - 1, "name": item["name"]}
        done = self._event("response.function_call_arguments.done", **where, arguments=item["arguments"])
        return [done, self._item_event("done")]

    def _close(self) -> list[bytes]:
        """End the open item, and return the events that say so."""
        if not self._open:
            return []
        if self._open == "function_call":
            return self._close_call()
        item, text, part_type = self._items[-1], "".join(self._text), _TEXTS[self._open][0]
        more: Body = {"logprobs": []} if self._open == "message" else {}
        self._text, self._open = [], ""
        part = _part(part_type, text)
        item["content"].append(part)
        item["status"] = "incomplete" if self._length else "completed"
        return [
            self._part_event(f"response.{part_type}.done", text=text, **more),
            self._part_event("response.content_part.done", part=part),
            self._item_event("done"),
        ]

    def _item_event(self, what: str) -> bytes:
        kind, index = f"response.output_item.{what}", len(self._items) - 1
        return self._event(kind, output_index=index, item=self._items[-1])

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        where = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\n" + responses.event(body)

    def _response(self, status: str, usage: UsageBody | None = None, error: Body | None = None) -> Body:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": self._items,
            **self._settings,
            "usage": None if usage is None else self._usage(usage),
            **(vendor_fields(self.vendor) if usage is not None else {}),
        }

    def _usage(self, usage: UsageBody) -> Body:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens or 0},
            "total_tokens": usage.total_tokens,
            **responses.engine_cost(usage),
        }


def _part(kind: str, text: str) -> Body:
    more: Body = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **more}
