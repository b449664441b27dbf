"""A headless Chromium, driven over its DevTools protocol: open a page, run scripts in it, take pictures.

What it asks of any machine but this one goes to a proxy that hangs up, and every address that a page asks for
is kept in `asked`.
"""

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from eventually import PATIENCE, until

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab, attached."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        """Errors on the console, including those of the content security policy."""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            message_body = json.loads(message.data)
            params = message_body.get("params", {})
            if (reply := self._replies.pop(message_body.get("id"), None)) is not None:
                reply.set_result(message_body)
            elif message_body.get("method") == "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            elif message_body.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])
            elif message_body.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the protocol. Raises RuntimeError with the browser's message."""
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        reply_body = await reply
        if "error" in reply_body:
            raise RuntimeError(f"{method}: {reply_body['error']}")
        result: dict[str, Any] = reply_body["result"]
        return result

    async def run(self, script: str) -> Any:
        """Run a script and return its value, awaited if it is a promise."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    async def until(self, script: str) -> Any:
        """Return the value of a script as soon as it is true."""
        async with asyncio.timeout(PATIENCE):
            while not (value := await self.run(script)):  # noqa: ASYNC110 - the page is in another process
                await asyncio.sleep(0.02)
        return value

    async def open(self, url: str, *, lands: str | None = None) -> None:
        """Go there, and wait until the page is loaded; `lands`: where a redirect leads."""
        await self.call("Page.navigate", url=url)
        await self.until(
            f"location.href === {json.dumps(lands or url)} && document.readyState === 'complete'"
        )

    async def type(self, text: str, *keys: str) -> None:
        """Type a text and then press keys in the focused element."""
        await self.call("Input.insertText", text=text)
        for key in keys:
            event = {"key": key, "code": key, "windowsVirtualKeyCode": {"Enter": 13, "Tab": 9}[key]}
            more = {"text": "\r"} if key == "Enter" else {}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **event, **more)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def size(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the window's size in CSS pixels, and the preferred colour scheme: light or dark."""
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **shape)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """Return the window's contents as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def close(self) -> None:
        """Let go of the tab."""
        await self._socket.close()
        await self._reading


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.close()


@asynccontextmanager
async def browser_page(folder: Path) -> AsyncIterator[Page]:
    """Yield a page of a browser of its own, whose profile is in `folder`."""
    assert BROWSER is not None
    proxy = await asyncio.start_server(_hang_up, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars",
        f"--proxy-server=127.0.0.1:{port}", "--proxy-bypass-list=127.0.0.1",
        "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with proxy, aiohttp.ClientSession() as session:
            port_file = folder / "DevToolsActivePort"
            await until(lambda: port_file.exists() and port_file.read_text().count("\n"))
            address = f"http://127.0.0.1:{port_file.read_text().split()[0]}"
            tabs: list[dict[str, Any]] = []
            async with asyncio.timeout(60):
                while not tabs:
                    async with session.get(f"{address}/json/list") as answer:
                        tabs = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                yield page
                await page.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
