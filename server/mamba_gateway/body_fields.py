"""The fields that the gateway reads from the bodies of requests and answers, which it passes on unchanged.

The fields of a request determine its route and its expected cost; an invalid body is refused with the message
that an engine would send. In an answer, only the object `usage`, with the engine's token counts, is parsed.
The header `USAGE_HEADER` asks our engines to end each stream with that object in a comment, which clients
ignore. For other engines, and for answers that broke off, each event counts as one token. Used by the relay,
shadow traffic and the endpoint picker. Pure.
"""

import re
from typing import Annotated

import msgspec
from pydantic_core import from_json

from mamba_edge.errors import NO_BODY, InvalidRequest

WORDED_BODY = 64 * 1024
"""Size in bytes up to which an invalid body is parsed again, to report where its error is."""
USUAL_ANSWER, MOST_ANSWER = 256, 100_000
"""Number of answer tokens that a key is charged in advance if the client sets no limit; and the largest
number that is charged in advance."""
MOST_DIGITS = 20
_TYPE_ERRORS = {"model": "must be a valid string", "stream": "must be a valid boolean"}
_ABSENT = msgspec.Raw(b"")
_NO_FORMS = (_ABSENT,) * 5
_NO_FORM = frozenset(
    (
        b"",
        b"null",
        b'"auto"',
        b'"none"',
        b'{"type":"auto"}',
        b'{"type":"none"}',
        b'{"format":{"type":"text"}}',
    )
)
"""Values with which a field that can prescribe the form of the answer prescribes none."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields of a request's body by which the gateway routes; all others are passed on undecoded."""

    model: str | None = None
    stream: bool | None = None
    priority: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    structured_outputs: msgspec.Raw = _ABSENT
    tool_choice: msgspec.Raw = _ABSENT
    output_config: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT

    @property
    def has_form(self) -> bool:
        """Whether the client prescribes a form, such as a schema, which an engine reads with native code."""
        forms = (
            self.response_format,
            self.structured_outputs,
            self.tool_choice,
            self.output_config,
            self.text,
        )
        if forms == _NO_FORMS:  # as of most requests
            return False
        return any(bytes(form).replace(b" ", b"") not in _NO_FORM for form in forms)

    @property
    def rank(self) -> int:
        """Priority of the request; 0 if the field is no number, which the engine will refuse."""
        return 0 if self.priority is _ABSENT else _number(self.priority) or 0

    @property
    def answer_tokens(self) -> int:
        """Maximum number of tokens of the answer, if the client sets one."""
        limit = None if self.max_completion_tokens is _ABSENT else _number(self.max_completion_tokens)
        limit = limit or _number(self.max_tokens)
        limit = _number(self.max_output_tokens) if limit is None else limit
        return min(max(0, limit), MOST_ANSWER) if limit is not None else USUAL_ANSWER


NO_FIELDS = RoutingFields()
"""Fields of a request whose body was not read."""
_decode_fields = msgspec.json.Decoder(RoutingFields).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _number(raw: msgspec.Raw) -> int | None:
    if raw is _ABSENT:
        return None
    text = bytes(raw)
    if len(text) >= MOST_DIGITS or not (text.isdigit() or text.lstrip(b"-").isdigit()):
        return None
    return int(text)


def routing_fields(body: bytes) -> RoutingFields:
    """Read the fields of a body. Raises `InvalidRequest` with the message that an engine would send."""
    try:
        fields = _decode_fields(body)
        # As for an engine, an empty name means that the request names no model.
        return fields if fields.model != "" else msgspec.structs.replace(fields, model=None)
    except msgspec.ValidationError as error:
        field = str(error).replace("`", "").partition(" - at $.")[2]
        if field in _TYPE_ERRORS:
            raise InvalidRequest(
                f"{field}: {_TYPE_ERRORS[field]}", param=field, code="invalid_type"
            ) from None
        broken = _syntax_error(body)
        message = f"the body is not valid JSON: {broken}" if broken else "the body must be a JSON object"
        raise InvalidRequest(message, code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        broken = f"the body is not valid JSON: {_syntax_error(body) or error}"
        message = broken if body.strip() else NO_BODY
        raise InvalidRequest(message, code="invalid_json") from None


def with_model(body: bytes, name: str) -> bytes:
    """Return a valid body with `name` as its model, and the bytes of all other fields unchanged.

    An engine serves one name, but a request may come under an alias, or be taken over by another model.
    """
    fields = _decode_raw(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)


def _syntax_error(body: bytes) -> str:
    # This parser creates an object for everything that it reads, so it is used for small bodies only.
    if len(body) <= WORDED_BODY:
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            return str(error)
    return ""


ERROR_EVENTS = (b'data: {"error":', b'data: {"type":"error"', b'data: {"type":"response.failed"')
"""Beginnings of the last event of a failed stream. Within the text of an answer, quotes are escaped."""
CLIENTS_MISTAKE = b'"invalid_request_error"'
"""Part of such an event if the failure is a mistake of the client, which no engine could have answered."""


def has_error_event(chunk: bytes) -> bool:
    """Return whether a part of a stream has the event of a failure."""
    return any(event in chunk for event in ERROR_EVENTS)


# Quotes within the text of an answer are escaped, so only a field of the engine looks like this.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_MARK = b'"usage"'
_LONGEST = 2048
"""Maximum size in bytes of a usage object that arrives in several pieces."""
_EVENT = b"data: {"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """The token counts in an engine's answer, in the form of any of the supported APIs."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    total_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None
    input_tokens: _Count = 0
    """Tokens of the prompt. In the Messages API, the tokens of the next two fields are not included."""
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count = 0
    output_tokens: _Count = 0
    input_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Number of prompt tokens that the engine took from its cache; None = the engine reports none."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return details.cached_tokens if details else self.cache_read_input_tokens

    @property
    def total(self) -> int:
        """Number of tokens of prompt and answer."""
        cached = (self.cache_read_input_tokens or 0) + self.cache_creation_input_tokens
        prompt = self.prompt_tokens + self.input_tokens + cached
        return self.total_tokens or prompt + self.completion_tokens + self.output_tokens


_decode_usage = msgspec.json.Decoder(Usage).decode


class UsageMeter:
    """Finds or counts the tokens of one answer while its bytes pass through the gateway."""

    __slots__ = ("_events", "_tail", "size", "usage")

    def __init__(self) -> None:
        self.size = 0
        """Number of bytes of the answer that have passed."""
        self.usage: Usage | None = None
        """Last usage object in the answer; None = there was none."""
        self._events = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the answer, which must not be compressed."""
        self.size += len(chunk)
        self._events += chunk.count(_EVENT)
        data = self._tail + chunk if self._tail else chunk
        mark = data.rfind(_MARK)
        if mark < 0:
            # No mark goes on behind a line's end.
            self._tail = b"" if data.endswith(b"\n") else data[1 - len(_MARK) :]
            return
        if match := _USAGE.search(data, mark):
            self._tail = b""
            try:
                self.usage = _decode_usage(match[1])
            except msgspec.DecodeError:
                return  # some other thing of this name
        else:
            self._tail = data[mark:] if len(data) - mark <= _LONGEST else data[1 - len(_MARK) :]

    @property
    def answer_tokens(self) -> int:
        """Number of tokens of the answer; without a usage object, the number of its events."""
        if self.usage is not None:
            return self.usage.completion_tokens or self.usage.output_tokens
        return self._events

    def used(self, prompt_tokens: float) -> float:
        """Return the tokens of prompt and answer; without a usage object, estimate them by the events."""
        if self.usage is not None:
            return self.usage.total
        return prompt_tokens + self._events if self.size else 0.0
