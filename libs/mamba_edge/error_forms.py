"""The forms in which errors reach clients: the OpenAI envelope, and those of other dialects by their paths.

Everything that sends an error asks `form_of` for the form of its path. Status and headers are the same in
every form. Pure.
"""

from typing import Any

import msgspec

from mamba_api.dialects.paths import COUNT_TOKENS, MESSAGES, RESPONSES
from mamba_edge.errors import ApiError

DONE = b"data: [DONE]\n\n"
"""Last event of a stream in OpenAI's form."""


class ErrorForm:
    """Writes errors as OpenAI's API does; the base of the forms of other APIs."""

    id_header: bytes | None = None
    """Name of a further header of answers with the identifier of the request; None = no further header."""

    def envelope(self, error: ApiError, request_id: str) -> bytes:
        """Return the body of the answer for an error."""
        return error.envelope()

    def event(self, error: ApiError, request_id: str) -> bytes:
        """Return the events that end a stream whose status was sent already."""
        return error.event() + DONE

    def event_of(self, envelope: dict[str, Any]) -> bytes:
        """Return the events that end a stream with an error whose `envelope` another server wrote."""
        return b"data: " + msgspec.json.encode({"error": envelope["error"]}) + b"\n\n" + DONE


_MESSAGES_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorForm(ErrorForm):
    """Writes errors as Anthropic's API does."""

    id_header = b"request-id"

    def envelope(self, error: ApiError, request_id: str) -> bytes:
        """Return the body of the answer for an error."""
        other = "api_error" if error.status >= 500 else "invalid_request_error"
        described = {"type": _MESSAGES_TYPES.get(error.status, other), "message": error.message}
        return msgspec.json.encode({"type": "error", "error": described, "request_id": request_id})

    def event(self, error: ApiError, request_id: str) -> bytes:
        """Return the event that ends a stream whose status was sent already."""
        return b"event: error\ndata: " + self.envelope(error, request_id) + b"\n\n"

    def event_of(self, envelope: dict[str, Any]) -> bytes:
        """Return the event that ends a stream with an error whose `envelope` another server wrote."""
        return b"event: error\ndata: " + msgspec.json.encode({**envelope, "type": "error"}) + b"\n\n"


class ResponsesErrorForm(ErrorForm):
    """Writes errors as the Responses API does: OpenAI's envelope, and an event of its own in a stream."""

    def event(self, error: ApiError, request_id: str) -> bytes:
        """Return the event that ends a stream whose status was sent already."""
        envelope: dict[str, Any] = msgspec.json.decode(error.envelope())
        return self.event_of(envelope)

    def event_of(self, envelope: dict[str, Any]) -> bytes:
        """Return the event that ends a stream with an error whose `envelope` another server wrote."""
        error = envelope["error"]
        flat = {name: error.get(name) for name in ("code", "message", "param")}
        body = {"type": "error", **flat, "error": error}
        return b"event: error\ndata: " + msgspec.json.encode(body) + b"\n\n"


OPENAI = ErrorForm()
_FORMS: dict[str, ErrorForm] = {
    **dict.fromkeys((MESSAGES, COUNT_TOKENS), MessagesErrorForm()),
    RESPONSES: ResponsesErrorForm(),
}


def form_of(path: str) -> ErrorForm:
    """Return the form of errors at a path."""
    return _FORMS.get(path, OPENAI)
