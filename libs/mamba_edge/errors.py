"""What a request can fail with at any of our servers, as the OpenAI envelope says it. Raised below the
request middleware, which turns it into an answer; engine API and gateway add errors of their own to the tree.

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
"""Characters of what a client is told, whatever of its request stands in there."""


class ApiError(Exception):
    """Base: status, OpenAI `type`, `code`, `param`, and seconds after which a retry makes sense."""

    status = 500
    kind = "server_error"
    code: str | None = "internal_error"
    retry_after: float | None = None
    close = False
    """The connection cannot be used for another request, or should not be."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = bounded(message, MOST_MESSAGE)
        self.param = param and bounded(param, LONGEST_WORD)
        if retry_after is not None:
            self.retry_after = retry_after

    def envelope(self) -> bytes:
        """The JSON body `{"error": {"message", "type", "param", "code"}}`."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def event(self) -> bytes:
        """The server-sent event that ends a stream which can no longer have a status."""
        return b"data: " + self.envelope() + b"\n\n"

    def headers(self) -> dict[str, str]:
        """Headers of the answer besides the content type."""
        headers = {"connection": "close"} if self.close else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return headers


NO_BODY = "the body is empty: send a JSON object"


class InvalidRequest(ApiError):
    """The request is wrong; `param` names the field."""

    status, kind = 400, "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message, param=param)
        self.code = code


class Unauthorized(ApiError):
    """No or a wrong API key."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


class NotFound(ApiError):
    """No such path."""

    status, kind, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """No such model."""

    code = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path exists, the method does not; `allow` lists those that do."""

    status, kind, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self._allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), **({"allow": self._allow} if self._allow else {})}


class RequestTimeout(ApiError):
    """Head or body did not arrive in time."""

    status, kind, code, close = 408, "invalid_request_error", "request_timeout", True


class BodyTooLarge(ApiError):
    """The body is over the limit. With `close` its rest is not read, so nothing can follow it."""

    status, kind, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(ApiError):
    """The body is not declared as JSON, or is coded."""

    status, kind, code = 415, "invalid_request_error", "unsupported_media_type"


class TooManyRequests(ApiError):
    """Enough requests are waiting already."""

    status, kind, code, retry_after = 429, "rate_limit_error", "rate_limit_exceeded", 1.0


class HeadersTooLarge(ApiError):
    """The request line and headers are over the limit."""

    status, kind, code, close = 431, "invalid_request_error", "headers_too_large", True


class InternalError(ApiError):
    """A defect of ours; the log has the details."""


class NotReady(ApiError):
    """Loading or restarting."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "not_ready", 2.0


class ServerDraining(NotReady):
    """The server is about to stop. Only a new connection can lead a retry to another one."""

    close = True


class TooManyBodies(ApiError):
    """The bodies of the requests under way take all the memory there is for them."""

    status, kind, code, retry_after = 503, "service_unavailable_error", "overloaded", 2.0


class TooManyConnections(ApiError):
    """As many connections are open as may be."""

    status, kind, code, close = 503, "service_unavailable_error", "overloaded", True
    retry_after = 2.0


def as_api_error(error: Exception, location: str = "") -> ApiError:
    """What the client is told about any exception; `location`: method and path for what is not served."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound(f"{location}there is nothing at this path; see /openapi.json")
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "")
            said = f"{location}the method is not allowed here; use {allow or 'another'}"
            return MethodNotAllowed(said, allow=allow)
        return InvalidRequest(error.detail)
    return InternalError("an unexpected error occurred; the server's log has the details")
