"""Cross-origin access to the API for pages of the configured origins (the Fetch standard's CORS protocol).

The outermost application of engine and gateway: preflights carry no key and are answered before any key is
checked, and pages can read errors too. Cookies are never used: a page puts the key into a header itself.
"""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mamba_edge.app.application import error_response
from mamba_edge.connection.direct_exchange import DIRECT
from mamba_edge.errors import InvalidRequest

METHODS = ("GET", "HEAD", "POST")
_LIMIT_HEADERS = tuple(
    f"X-RateLimit-{value}-{unit}"
    for unit in ("Requests", "Tokens")
    for value in ("Limit", "Remaining", "Reset")
)
EXPOSED = ("X-Request-Id", "Retry-After", "X-Mambaserve-Form-Left-Out", *_LIMIT_HEADERS)
"""Response headers that a page may read."""
ANY_HEADER = ("*",)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return `app` for pages of `origins` ("*" stands for all origins), or `app` itself if there are none."""
    if not origins:
        return app
    return _Cors(
        app, allow_origins=origins, allow_methods=METHODS, allow_headers=ANY_HEADER, expose_headers=EXPOSED
    )


class _Cors(CORSMiddleware):
    """CORS middleware that refuses with our error envelope."""

    async def simple_response(
        self, scope: Scope, receive: Receive, send: Send, request_headers: Headers
    ) -> None:
        if DIRECT in scope:
            scope[DIRECT].through_send = True
        await super().simple_response(scope, receive, send, request_headers)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        reason = bytes(response.body).decode()
        error = InvalidRequest(f"{reason}; pages of origins in --cors-origin may send {', '.join(METHODS)}")
        refused = error_response(error)
        refused.headers["vary"] = "Origin"
        return refused
