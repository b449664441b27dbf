"""What a request to an engine can fail with beside what every server of ours knows, and what can keep the
server from running. The base and the shared errors are `mamba_edge.errors`.

ApiError
├── InvalidRequest
│   └── ContextTooLong    400 context_length_exceeded
├── Forbidden             403 forbidden
├── TooManyForms          429 too_many_forms        (Retry-After)
├── EngineRefused         as the engine says
├── AdminRefused          as the engine says: 400 invalid_value, 404 not_found, 409 refused
├── EngineLost            503 engine_lost           (Retry-After)
└── AdminTimeout          504 engine_timeout
ServeError
├── EngineStartFailed     exit code as the engine says: 2 invalid input, 3 does not fit, 1 otherwise
└── BadConfiguration      2
"""

from mamba_edge.errors import ApiError, InvalidRequest
from mamba_edge.exchange.engine_limit import FORMS, LIMIT_HEADER
from mamba_server.wire import AdminReply, RequestRejected


class ContextTooLong(InvalidRequest):
    """Prompt plus output exceed the model's length."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Forbidden(ApiError):
    """Not from here."""

    status, kind, code = 403, "permission_error", "forbidden"


class TooManyForms(ApiError):
    """Enough forms wait to be checked: there is room for requests without one, and for other clients."""

    status, kind, code, retry_after = 429, "rate_limit_error", "too_many_forms", 1.0

    def headers(self) -> dict[str, str]:
        return {**super().headers(), LIMIT_HEADER.decode(): FORMS}


class EngineRefused(ApiError):
    """The engine cannot run this request."""

    def __init__(self, rejected: RequestRejected) -> None:
        super().__init__(rejected.message, retry_after=rejected.retry_after)
        self.status, self.kind, self.code = rejected.status, rejected.kind, rejected.code
        if self.retry_after is None and self.status in (429, 503):
            self.retry_after = 1.0


class AdminRefused(ApiError):
    """The engine does not do what an admin call asks of it."""

    kind = "invalid_request_error"

    def __init__(self, reply: AdminReply) -> None:
        super().__init__(str(reply.body.get("message") or "the engine refuses this"))
        self.status = reply.status
        self.code = {400: "invalid_value", 404: "not_found"}.get(reply.status, "refused")


class EngineLost(ApiError):
    """The engine process ended while it worked on this request."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "engine_lost", 2.0


class AdminTimeout(ApiError):
    """The engine did not answer an admin call in time."""

    status, kind, code = 504, "server_error", "engine_timeout"


class ServeError(Exception):
    """Base of what keeps the server from running."""

    exit_code = 1


class EngineStartFailed(ServeError):
    """The engine gave up before it was ever ready."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BadConfiguration(ServeError):
    """An option, or a file it names, is wrong."""

    exit_code = 2
