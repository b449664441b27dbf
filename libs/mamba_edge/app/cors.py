"""Pages of other origins may call the API where the settings name them (the Fetch standard's CORS protocol).

The outermost application of engine and gateway: preflights carry no key and are answered before anybody asks
for one, and errors can be read by the page, too. Cookies are never asked for: a key travels in a header that
the page sets itself.
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
_OF_LIMITS = tuple(
    f"X-RateLimit-{what}-{of}" for of in ("Requests", "Tokens") for what in ("Limit", "Remaining", "Reset")
)
EXPOSED = ("X-Request-Id", "Retry-After", "X-Mambaserve-Form-Left-Out", *_OF_LIMITS)
"""Headers of an answer that a page may read."""
ANY_HEADER = ("*",)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app` for pages of these origins, "*" = of all; the same `app` where there are none."""
    if not origins:
        return app
    return _Cors(
        app, allow_origins=origins, allow_methods=METHODS, allow_headers=ANY_HEADER, expose_headers=EXPOSED
    )


class _Cors(CORSMiddleware):
    """Refuses in our envelope."""

    async def simple_response(
        self, scope: Scope, receive: Receive, send: Send, request_headers: Headers
    ) -> None:
        if DIRECT in scope:
            scope[DIRECT].through_send = True
        await super().simple_response(scope, receive, send, request_headers)

    def preflight_response(self, request_headers: Headers) -> Response:
        made = super().preflight_response(request_headers)
        if made.status_code < 400:
            return made
        said = bytes(made.body).decode()
        error = InvalidRequest(f"{said}; pages of origins in --cors-origin may send {', '.join(METHODS)}")
        refused = error_response(error)
        refused.headers["vary"] = "Origin"
        return refused
