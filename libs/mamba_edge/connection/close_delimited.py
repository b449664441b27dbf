"""Answers to clients of HTTP/1.0. Used by our server's connections."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class CloseDelimitedResponses:
    """Around the application for a client of HTTP/1.0, which knows no chunks: a body of unknown length ends
    where the connection does."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app, self._cycle = app, cycle
        self._unknown_length = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._unknown_length = all(name != b"content-length" for name, _ in message["headers"])
                if self._unknown_length:
                    self._cycle.chunked_encoding = False
            elif self._unknown_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, unchunked)
