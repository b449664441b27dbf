"""The gateway's own errors, in addition to those of the HTTP edge.

ApiError (mamba_edge)
├── ModelForbidden        403 model_forbidden     the API key may not use the model, if there is one
├── TooManyRequests (mamba_edge)
│   └── KeyOverLimit      429 rate_limit_exceeded the key used up its limit; other keys are not concerned
├── UpstreamLost          502 upstream_died       the engine broke off, and no other engine is tried
├── UpstreamIdleTimeout   504 upstream_silent     the engine sent nothing for too long
├── RequestTimedOut       504 request_timeout     the request has taken too long
├── LedgerAway            503 ledger_away         the Redis of the ledger does not answer
└── NotReady
    ├── NoEndpoint        503 no_ready_endpoint   no engine can take the request now; retry later
    └── GatewayDraining   503 draining            this gateway is shutting down; retry elsewhere
"""

from mamba_edge.errors import ApiError, NotReady, TooManyRequests

NO_ANSWER = "the engine closed the connection before it answered; try again"
CUT_SHORT = "the engine closed the connection before its answer was complete; try again"
ENDED_AN_ENGINE = (
    "an engine ended on this request, whose answer was to have a form; it is not sent to another one: change "
    "the form, or try again in some minutes"
)
SILENT = "the engine sent nothing for too long"


class ModelForbidden(ApiError):
    """The API key may not use the model. The error is the same if there is no such model."""

    status, kind, code = 403, "permission_error", "model_forbidden"


class KeyOverLimit(TooManyRequests):
    """The API key of the request has used up its own limit. Requests of other keys may still be accepted."""


class UpstreamLost(ApiError):
    """The engine closed the connection before its answer was complete."""

    status, code = 502, "upstream_died"


class UpstreamIdleTimeout(ApiError):
    """The engine keeps the connection open, but has sent nothing for longer than the idle limit."""

    status, code = 504, "upstream_silent"


class RequestTimedOut(ApiError):
    """The request has taken longer than the gateway lets any request take."""

    status, code = 504, "request_timeout"


class LedgerAway(ApiError):
    """The Redis of the ledger does not answer."""

    status, code = 503, "ledger_away"
    retry_after = 5.0


class NoEndpoint(NotReady):
    """No engine can take the request now."""

    code = "no_ready_endpoint"


class GatewayDraining(NotReady):
    """This gateway is shutting down: it finishes its requests and accepts no further ones."""

    code, retry_after, close = "draining", 1.0, True
