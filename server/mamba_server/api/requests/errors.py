"""Errors of requests to an engine, and errors that keep the API process from running.

Errors that all our servers share, and their base class, are in `mamba_edge.errors`.

ApiError
├── InvalidRequest
│   └── ContextTooLong    400 context_length_exceeded
├── Forbidden             403 forbidden
├── TooManyForms          429 too_many_forms        (Retry-After)
├── EngineRefused         status and code of the engine
├── AdminRefused          status of the engine: 400 invalid_value, 404 not_found, 409 refused
├── NoRoomForSession      503 no_room               (Retry-After)
├── EngineLost            503 engine_lost           (Retry-After)
└── AdminTimeout          504 engine_timeout
ServeError
├── EngineStartFailed     exit code of the engine: 2 invalid input, 3 does not fit, 1 otherwise
└── BadConfiguration      2
"""

from mamba_edge.errors import ApiError, InvalidRequest
from mamba_edge.exchange.asgi_responses import FORMS, LIMIT_HEADER
from mamba_server.wire import AdminReply, RequestRejected


class ContextTooLong(InvalidRequest):
    """Prompt and output together exceed the model's maximum context length."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Forbidden(ApiError):
    """The caller may not use this path."""

    status, kind, code = 403, "permission_error", "forbidden"


class TooManyForms(ApiError):
    """Too many output forms of this client wait to be checked.

    Requests without a form, and requests of other clients, are still accepted.
    """

    status, kind, code, retry_after = 429, "rate_limit_error", "too_many_forms", 1.0

    def headers(self) -> dict[str, str]:
        return {**super().headers(), LIMIT_HEADER.decode(): FORMS}


class EngineRefused(ApiError):
    """The engine rejected this request."""

    def __init__(self, rejected: RequestRejected) -> None:
        super().__init__(rejected.message, retry_after=rejected.retry_after)
        self.status, self.kind, self.code = rejected.status, rejected.kind, rejected.code
        if self.retry_after is None and self.status in (429, 503):
            self.retry_after = 1.0


class AdminRefused(ApiError):
    """The engine refused an admin operation."""

    kind = "invalid_request_error"

    def __init__(self, reply: AdminReply) -> None:
        super().__init__(str(reply.body.get("message") or "the engine refused this operation"))
        self.status = reply.status
        self.code = {400: "invalid_value", 404: "not_found"}.get(reply.status, "refused")


class NoRoomForSession(ApiError):
    """The state of the conversation cannot be kept or written now."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "no_room", 2.0


class EngineLost(ApiError):
    """The engine process ended while it worked on this request."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "engine_lost", 2.0


class AdminTimeout(ApiError):
    """The engine did not answer an admin call in time."""

    status, kind, code = 504, "server_error", "engine_timeout"


class ServeError(Exception):
    """Base of the errors that keep the API process from running."""

    exit_code = 1


class EngineStartFailed(ServeError):
    """The engine ended before it was ever ready."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BadConfiguration(ServeError):
    """An option, or a file that it names, is invalid."""

    exit_code = 2
