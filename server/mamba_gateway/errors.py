"""What the gateway answers with when it cannot relay; each error carries its status, OpenAI type and code.

GatewayError                    500 internal_error
├── InvalidRequest              400 invalid_request_error   wrong JSON or a wrong field: `param` names it
├── InvalidApiKey               401 authentication_error
├── UnknownRoute                404 invalid_request_error   nothing is served under this path
├── UnknownModel                404 model_not_found         no engine serves this model
├── WrongMethod                 405 invalid_request_error
├── BodyTooSlow                 408 invalid_request_error   the client did not send its body in time
├── BodyTooLarge                413 invalid_request_error
├── Overloaded                  429 overloaded              the limits are reached; retry later
├── UpstreamLost                502 upstream_died           the engine broke off; not (or no longer) retried
├── NoEndpoint                  503 no_ready_endpoint       no engine can take the request now; retry later
├── Draining                    503 draining                this gateway is about to stop; retry elsewhere
├── UpstreamIdleTimeout         504 upstream_silent         the engine sent nothing for too long
└── RequestTimedOut             504 request_timeout         the request's longest life is over
"""

from typing import ClassVar

import msgspec


class GatewayError(Exception):
    """Base: turned into the OpenAI error envelope, as a response or as an event inside a stream."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def envelope(self) -> bytes:
        """The JSON body `{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class InvalidRequest(GatewayError):
    """The body is not JSON, or a field the gateway reads has the wrong type."""

    status, kind, code = 400, "invalid_request_error", "invalid_request"


class InvalidApiKey(GatewayError):
    """No key, or one that is not in the key file."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class UnknownRoute(GatewayError):
    """NoCandidate is served under this path."""

    status, kind, code = 404, "invalid_request_error", "not_found"


class UnknownModel(GatewayError):
    """Engines are known, but none serves the model."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"


class WrongMethod(GatewayError):
    """The path exists, the method does not; `allow` lists those that do."""

    status, kind, code = 405, "invalid_request_error", "method_not_allowed"
    allow = ""


class BodyTooSlow(GatewayError):
    """The client did not send its body within the time limit."""

    status, kind, code = 408, "invalid_request_error", "request_timeout"


class BodyTooLarge(GatewayError):
    """The body is larger than the gateway takes."""

    status, kind, code = 413, "invalid_request_error", "request_too_large"


class Overloaded(GatewayError):
    """In-flight and queue limits are reached."""

    status, kind, code = 429, "overloaded_error", "overloaded"


class UpstreamLost(GatewayError):
    """The engine closed the connection before its answer was complete."""

    status, kind, code = 502, "server_error", "upstream_died"


class NoEndpoint(GatewayError):
    """No engine can take the request now."""

    status, kind, code = 503, "server_error", "no_ready_endpoint"


class Draining(GatewayError):
    """This gateway finishes what it has and takes nothing new."""

    status, kind, code = 503, "server_error", "draining"


class UpstreamIdleTimeout(GatewayError):
    """The engine holds the connection open but sent nothing for longer than the idle limit."""

    status, kind, code = 504, "server_error", "upstream_silent"


class RequestTimedOut(GatewayError):
    """The request reached the longest life that the gateway grants."""

    status, kind, code = 504, "server_error", "request_timeout"
