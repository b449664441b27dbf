"""An ASGI application of ours at a real address, for browsers and scrapers; inside the test's event loop.

`behind_prefix` puts it behind a path prefix, as an Ingress does that strips it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from eventually import until
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.listener import listen, url_of

PREFIX = "/behind/a/proxy"


def behind_prefix(app: Any) -> Any:
    """Wrap the application the way a proxy does that strips PREFIX; other addresses lead to it as well."""

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "").removeprefix(PREFIX)
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return behind


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve the application for the length of the block and yield its URL."""
    with listen("127.0.0.1", 0) as listener:
        server = HttpServer(app, last_bytes_seconds=1)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            await running
