"""The fields of a request's body that the gateway itself reads: for its route and its estimated cost.

Pure. A wrong body is refused in the words of an engine that gets the same one.
"""

import msgspec
from pydantic_core import from_json

from mamba_edge.errors import NO_BODY, InvalidRequest

WORDED_BODY = 64 * 1024
"""Largest malformed body that is read again to locate its error, in bytes."""
USUAL_ANSWER, MOST_ANSWER = 256, 100_000
"""Tokens of an answer that its key is charged in advance where the client sets no limit; largest such
charge."""
MOST_DIGITS = 20
_TYPE_ERRORS = {"model": "must be a valid string", "stream": "must be a valid boolean"}
_ABSENT = msgspec.Raw(b"")
_NO_FORMS = (_ABSENT, _ABSENT, _ABSENT)
_NO_FORM = frozenset((b"", b"null", b'"auto"', b'"none"'))
"""Values of the fields of a form with which the answer has none."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields that the gateway reads; all others are skipped, not decoded, and passed on as they came."""

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
        """Whether the answer has a form or is a call, so that native code reads what the client wrote."""
        forms = (self.response_format, self.structured_outputs, self.tool_choice)
        if forms == _NO_FORMS:  # as of most requests
            return False
        return any(bytes(form) not in _NO_FORM for form in forms)

    @property
    def rank(self) -> int:
        """The priority; 0 where it is not a number, which the engine will refuse."""
        return 0 if self.priority is _ABSENT else _number(self.priority) or 0

    @property
    def answer_tokens(self) -> int:
        """Largest number of tokens of the answer, as far as the client sets it."""
        limit = None if self.max_completion_tokens is _ABSENT else _number(self.max_completion_tokens)
        limit = limit or _number(self.max_tokens)
        return min(max(0, limit), MOST_ANSWER) if limit is not None else USUAL_ANSWER


NO_FIELDS = RoutingFields()
"""Fields of a request whose body was not read."""
_decode = msgspec.json.Decoder(RoutingFields).decode


def _number(raw: msgspec.Raw) -> int | None:
    if raw is _ABSENT:
        return None
    text = bytes(raw)
    if len(text) >= MOST_DIGITS or not (text.isdigit() or text.lstrip(b"-").isdigit()):
        return None
    return int(text)


def routing_fields(body: bytes) -> RoutingFields:
    """Read the fields of a body. Raises `InvalidRequest`, in the words of an engine with the same body."""
    try:
        fields = _decode(body)
        # For an engine, too, an empty name means no model.
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


def _syntax_error(body: bytes) -> str:
    # The engine's parser creates objects of everything that it reads: for small bodies alone.
    if len(body) <= WORDED_BODY:
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            return str(error)
    return ""
