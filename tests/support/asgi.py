"""One request to an ASGI application, by hand: the body comes in parts, the client may leave at any time."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Self

from eventually import PATIENCE

App = Callable[..., Any]
DISCONNECT = {"type": "http.disconnect"}


class Asked:
    """One request under way: what the application sent so far, and the client's next moves."""

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        query: str = "",
        blocked: bool = False,
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        """Clear: the client does not read, and `send` waits."""
        if not blocked:
            self.reading.set()
        self._moves: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.ensure_future(app(scope, self._moves.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        self.messages.append(message)

    def part(self, body: bytes, *, more: bool = True) -> Self:
        """Send a part of the body."""
        self._moves.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def whole(self, body: Any) -> Self:
        """Send all of the body; a value that is not bytes goes as JSON."""
        return self.part(body if isinstance(body, bytes) else json.dumps(body).encode(), more=False)

    def leave(self) -> Self:
        """Close the connection of the client."""
        self._moves.put_nowait(DISCONNECT)
        return self

    async def done(self, seconds: float = PATIENCE) -> Self:
        """Wait for the application's end; raises what it raised."""
        async with asyncio.timeout(seconds):
            await self.task
        return self

    @property
    def status(self) -> int:
        """0 before the answer began."""
        return self.messages[0]["status"] if self.messages else 0

    @property
    def headers(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return len(self.messages) > 1 and not self.messages[-1].get("more_body", False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") for block in blocks)
        return [block.removeprefix("data: ") for block in blocks]


def ask(app: App, method: str, path: str, body: Any = b"", **more: Any) -> Asked:
    """Send a request with its whole body."""
    return Asked(app, method, path, **more).whole(body)
