"""Errors of requests at any of our servers, with their OpenAI envelope.

Raised below the request middleware, which turns each into an answer; engine API and gateway add errors of
their own to the tree.


ApiError
├── InvalidRequest        400 invalid_value
├── Unauthorized          401 invalid_api_key
├── NotFound              404 not_found
│   └── ModelNotFound     404 model_not_found
├── MethodNotAllowed      405 method_not_allowed
├── RequestTimeout        408 request_timeout       (the connection is closed)
├── BodyTooLarge          413 request_too_large
├── UnsupportedMediaType  415 unsupported_media_type
├── TooManyRequests       429 rate_limit_exceeded   (Retry-After)
├── HeadersTooLarge       431 headers_too_large     (the connection is closed)
├── InternalError         500 internal_error
├── NotReady              503 not_ready             (Retry-After)
│   └── ServerDraining    503 not_ready             (Retry-After; the connection is closed)
├── TooManyBodies         503 overloaded            (Retry-After)
└── TooManyConnections    503 overloaded            (Retry-After; the connection is closed)
"""

import math

import msgspec
from starlette.exceptions import HTTPException

from mamba_api.bounded_text import LONGEST_WORD, bounded

MOST_MESSAGE = 2000
"""Longest error message in characters, however long the part of the request is that it quotes."""


class ApiError(Exception):
    """The base of all errors: status, OpenAI `type`, `code`, `param`, and seconds until a retry is useful."""

    status = 500
    kind = "server_error"
    code: str | None = "internal_error"
    retry_after: float | None = None
    close = False
    """Whether the connection cannot, or should not, be used for another request."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = bounded(message, MOST_MESSAGE)
        self.param = param and bounded(param, LONGEST_WORD)
        if retry_after is not None:
            self.retry_after = retry_after

    def envelope(self) -> bytes:
        """Return the JSON body `{"error": {"message", "type", "param", "code"}}`."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def event(self) -> bytes:
        """Return the server-sent event that ends a stream whose status was sent already."""
        return b"data: " + self.envelope() + b"\n\n"

    def headers(self) -> dict[str, str]:
        """Return headers of the answer besides the content type."""
        headers = {"connection": "close"} if self.close else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return headers


NO_BODY = "the body is empty: send a JSON object"


class InvalidRequest(ApiError):
    """An invalid request; `param` names the field."""

    status, kind = 400, "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.code = code


class Unauthorized(ApiError):
    """A request without an API key, or with a wrong one."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


class NotFound(ApiError):
    """A request for a path that does not exist."""

    status, kind, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """A request for a model that is not served."""

    code = "model_not_found"


class MethodNotAllowed(ApiError):
    """A request with a method that its path does not have; `allow` lists the allowed ones."""

    status, kind, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self._allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **({"allow": self._allow} if self._allow else {})}


class RequestTimeout(ApiError):
    """A request whose head or body did not arrive in time."""

    status, kind, code, close = 408, "invalid_request_error", "request_timeout", True


class BodyTooLarge(ApiError):
    """A request whose body is above the limit.

    If `close` is True, the rest of the body is not read and the connection ends.
    """

    status, kind, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(ApiError):
    """A request whose body is not declared as JSON, or is compressed."""

    status, kind, code = 415, "invalid_request_error", "unsupported_media_type"


class TooManyRequests(ApiError):
    """A request beyond a limit, such as that of waiting requests; it may succeed later."""

    status, kind, code, retry_after = 429, "rate_limit_error", "rate_limit_exceeded", 1.0


class HeadersTooLarge(ApiError):
    """A request whose request line and headers exceed the limit."""

    status, kind, code, close = 431, "invalid_request_error", "headers_too_large", True


class InternalError(ApiError):
    """A defect of the server; its log has the details."""


class NotReady(ApiError):
    """A server that is loading or restarting."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "not_ready", 2.0


class ServerDraining(NotReady):
    """A server that is about to stop. Only a new connection can lead a retry to another server."""

    close = True


class TooManyBodies(ApiError):
    """A request that arrived while the bodies of others took all the memory for bodies."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "overloaded", 2.0


class TooManyConnections(ApiError):
    """A request on a new connection while as many as the server takes have a request under way."""

    status, kind, code, close = 503, "service_unavailable_error", "overloaded", True
    retry_after = 2.0


def as_api_error(error: Exception, location: str = "") -> ApiError:
    """Return the error that the client gets for an exception.

    `location` is the method and the path of the request, as the beginning of the message of some errors.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound(f"{location}there is nothing at this path; see /openapi.json")
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "")
            message = f"{location}the method is not allowed here; use {allow or 'another'}"
            return MethodNotAllowed(message, allow=allow)
        return InvalidRequest(error.detail)
    return InternalError("an unexpected error occurred; the server's log has the details")
