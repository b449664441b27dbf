"""Takes the pictures of the status page for the documentation: serves the shipped model and chats with it.

    .venv/bin/python scripts/status_pictures.py

Needs Chromium. Writes docs/assets/status-page-light.png and -dark.png.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests/support"))

from browser import Page, browser_page  # noqa: E402
from mamba_cli.local.demo import chats, document  # noqa: E402
from servers import Command  # noqa: E402

ASSETS = ROOT / "docs/assets"
WIDTH, HEIGHT = 1180, 900
SECONDS = 40
"""Seconds of load on the engine before the picture is taken."""


async def busy(url: str) -> None:
    """Send requests of several users who share a document, in varying numbers."""
    async with aiohttp.ClientSession() as session:

        async def one(number: int) -> None:
            await asyncio.sleep(0.37 * (number % 5))
            while True:
                messages = chats()[number % 4][1]
                turn = [*messages, {"role": "user", "content": f"Again, number {number}"}]
                body: dict[str, Any] = {"model": "tiny-recall", "messages": turn, "max_tokens": 200,
                                        "ignore_eos": True, "temperature": 1.0}  # fmt: skip
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    await answer.read()
                await asyncio.sleep(0.5 * (number % 4))

        await asyncio.gather(*(one(number) for number in range(6)))


async def chat(page: Page, text: str) -> None:
    await page.run("document.getElementById('chat-text').focus()")
    await page.type(text, "Enter")
    await page.until("!document.getElementById('chat-send').disabled")


async def main() -> None:
    with Command("up", str(ROOT / "examples/01-quick-start/mamba.yaml"), "--port", "0") as up:
        url = (await asyncio.to_thread(up.wait_for, r"status page: (http://\S+)/ui"))[1]
        with tempfile.TemporaryDirectory() as profile:
            async with browser_page(Path(profile)) as page:
                await page.size(WIDTH, HEIGHT)
                await page.open(f"{url}/ui")
                await page.until("document.querySelectorAll('#model option').length > 0")
                load = asyncio.create_task(busy(url))
                await asyncio.sleep(SECONDS / 2)
                await chat(page, f"{document()}\nWhat is the ticket?")
                for question in ("What is the ring?", "What is the castle?"):
                    await asyncio.sleep(SECONDS / 8)
                    await chat(page, question)
                await asyncio.sleep(SECONDS / 4)
                await page.run("document.activeElement.blur()")
                for scheme in ("light", "dark"):
                    await page.size(WIDTH, HEIGHT, scheme)
                    # A page has few colours; with a palette its picture is half as large.
                    taken = Image.open(io.BytesIO(await page.picture())).convert("RGB").quantize(96)
                    taken.save(ASSETS / f"status-page-{scheme}.png", optimize=True)
                load.cancel()


if __name__ == "__main__":
    asyncio.run(main())
