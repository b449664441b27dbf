"""What a request can fail with, as the OpenAI envelope says it, and what can keep the server from running.

ApiError
├── InvalidRequest        400 invalid_request_error
│   └── ContextTooLong    400 context_length_exceeded
├── Unauthorized          401 invalid_api_key
├── Forbidden             403 forbidden
├── NotFound              404 not_found
│   └── ModelNotFound     404 model_not_found
├── MethodNotAllowed      405 method_not_allowed
├── BodyTimeout           408 request_timeout
├── BodyTooLarge          413 request_too_large
├── UnsupportedMediaType  415 unsupported_media_type
├── TooManyRequests       429 rate_limit_exceeded   (Retry-After)
├── InternalError         500 internal_error
├── EngineRefused         as the engine says
├── NotReady              503 not_ready             (Retry-After)
├── EngineLost            503 engine_lost           (Retry-After)
└── AdminTimeout          504 engine_timeout
ServeError
├── EngineStartFailed     exit code as the engine says: 2 invalid input, 3 does not fit, 1 otherwise
└── BadConfiguration      2
"""

import msgspec

from mamba_server.wire import RequestRejected


class ApiError(Exception):
    """Base: status, OpenAI `type`, `code`, `param`, and seconds after which a retry makes sense."""

    status = 500
    kind = "server_error"
    code: str | None = "internal_error"
    retry_after: float | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after is not None:
            self.retry_after = retry_after

    def envelope(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def headers(self) -> dict[str, str]:
        """Headers of the answer besides the content type."""
        if self.retry_after is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after)))}


class InvalidRequest(ApiError):
    """The request is wrong; `param` names the field."""

    status, kind = 400, "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.code = code


class ContextTooLong(InvalidRequest):
    """Prompt plus output exceed the model's length."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Unauthorized(ApiError):
    """No or a wrong API key."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class Forbidden(ApiError):
    """Not from here."""

    status, kind, code = 403, "permission_error", "forbidden"


class NotFound(ApiError):
    """No such path."""

    status, kind, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """No such model."""

    code = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path exists, the method does not."""

    status, kind, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self._allow = allow

    def headers(self) -> dict[str, str]:
        return {"allow": self._allow} if self._allow else {}


class BodyTimeout(ApiError):
    """The body did not arrive in time."""

    status, kind, code = 408, "invalid_request_error", "request_timeout"


class BodyTooLarge(ApiError):
    """The body is over the limit."""

    status, kind, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(ApiError):
    """The body is not declared as JSON."""

    status, kind, code = 415, "invalid_request_error", "unsupported_media_type"


class TooManyRequests(ApiError):
    """Enough requests are waiting already."""

    status, kind, code, retry_after = 429, "rate_limit_error", "rate_limit_exceeded", 1.0


class InternalError(ApiError):
    """A defect of ours; the log has the details."""


class EngineRefused(ApiError):
    """The engine cannot run this request."""

    def __init__(self, rejected: RequestRejected) -> None:
        super().__init__(rejected.message, retry_after=rejected.retry_after)
        self.status, self.kind, self.code = rejected.status, rejected.kind, rejected.code
        if self.retry_after is None and self.status in (429, 503):
            self.retry_after = 1.0


class NotReady(ApiError):
    """Loading, restarting or draining."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "not_ready", 2.0


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
