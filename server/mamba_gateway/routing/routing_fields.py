"""The fields of a request's body that the gateway itself reads: where it may go, and about what it costs.

Pure. What is wrong with a body is told in the words of an engine that gets the same one.
"""

import msgspec
from pydantic_core import from_json

from mamba_edge.errors import NO_BODY, InvalidRequest

WORDED_BODY = 64 * 1024
"""Largest body that is read again to say where it breaks."""
USUAL_ANSWER, MOST_ANSWER = 256, 100_000
"""Tokens of an answer that its key pays for at first: where the client sets no limit, and at most."""
MOST_DIGITS = 20
_WANTED = {"model": "must be a valid string", "stream": "must be a valid boolean"}
_ABSENT = msgspec.Raw(b"")
_NO_FORM = frozenset((b"", b"null", b'"auto"', b'"none"'))
"""What these fields are where nothing is asked of an answer."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields that are read here; everything else is skipped, not decoded, and passed on as it came."""

    model: str | None = None
    stream: bool | None = None
    priority: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    structured_outputs: msgspec.Raw = _ABSENT
    tool_choice: msgspec.Raw = _ABSENT

    @property
    def has_form(self) -> bool:
        """Whether the answer is to have a form, or to be a call: then native code reads what the client
        wrote."""
        asked = (bytes(self.response_format), bytes(self.structured_outputs), bytes(self.tool_choice))
        return any(each not in _NO_FORM for each in asked)

    @property
    def rank(self) -> int:
        """The priority; 0 where it is none, which the engine will say."""
        return 0 if self.priority is _ABSENT else _number(self.priority) or 0

    @property
    def answer_tokens(self) -> int:
        """Most tokens of the answer, as far as the client says."""
        wanted = None if self.max_completion_tokens is _ABSENT else _number(self.max_completion_tokens)
        wanted = wanted or _number(self.max_tokens)
        return min(max(0, wanted), MOST_ANSWER) if wanted is not None else USUAL_ANSWER


NO_FIELDS = RoutingFields()
"""Of a request whose body was not read."""
_decode = msgspec.json.Decoder(RoutingFields).decode


def _number(raw: msgspec.Raw) -> int | None:
    if raw is _ABSENT:
        return None
    written = bytes(raw)
    if len(written) >= MOST_DIGITS or not (written.isdigit() or written.lstrip(b"-").isdigit()):
        return None
    return int(written)


def routing_fields(body: bytes) -> RoutingFields:
    """Read them. Raises `InvalidRequest`, in the words of an engine that gets the same body."""
    try:
        fields = _decode(body)
        # For an engine, too, an empty name asks for no model.
        return fields if fields.model != "" else msgspec.structs.replace(fields, model=None)
    except msgspec.ValidationError as error:
        field = str(error).replace("`", "").partition(" - at $.")[2]
        if field in _WANTED:
            raise InvalidRequest(f"{field}: {_WANTED[field]}", param=field, code="invalid_type") from None
        broken = _where_it_breaks(body)
        message = f"the body is not valid JSON: {broken}" if broken else "the body must be a JSON object"
        raise InvalidRequest(message, code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        broken = f"the body is not valid JSON: {_where_it_breaks(body) or error}"
        message = broken if body.strip() else NO_BODY
        raise InvalidRequest(message, code="invalid_json") from None


def _where_it_breaks(body: bytes) -> str:
    # The engine's parser, which makes objects of all that it reads: for small bodies alone.
    if len(body) <= WORDED_BODY:
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            return str(error)
    return ""
