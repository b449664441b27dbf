"""The docs page: what it shows in a browser, and that it asks nothing of any other machine."""

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from asgi import ask
from browser import BROWSER
from matrix_size import LARGE
from scripted_engine import Api
from served_app import served

HERE = "http://127.0.0.1:8000"
SHOWN = {
    "public": ["/v1/chat/completions", "Answer a conversation", "/v1/models/{name}", "Generation"],
    "admin": ["/admin/flush_cache", "/admin/strategy", "Administration"],
}
"""Words of the page of each server."""


@pytest.fixture(params=["public", "admin"])
def page_of(request: pytest.FixtureRequest) -> str:
    which: str = request.param
    return which


def app_of(api: Api, which: str) -> object:
    return api.app if which == "public" else api.admin


async def test_every_address_in_the_page_and_its_styles_is_of_the_same_server(page_of: str) -> None:
    app = app_of(Api(), page_of)
    page = await ask(app, "GET", "/docs").done()
    assert page.headers["content-type"].startswith("text/html")
    html = page.body.decode()
    named = re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)["']""", html)
    named += re.findall(r"""url["']?\s*:\s*["']([^"']*)["']""", html)
    loaded = [url for url in named if not url.startswith("data:")]
    assert "/openapi.json" in loaded
    for url in loaded:
        assert urlsplit(urljoin(HERE, url)).netloc == urlsplit(HERE).netloc
        asset = await ask(app, "GET", url).done()
        assert asset.status == 200
        if url.endswith(".css"):
            fetched = re.findall(rb"""(?:url\(|@import)\s*["']?([^"')\s]+)""", asset.body)
            assert all(one.startswith(b"data:") for one in fetched)
    assert not re.search(r"https?://", re.sub(r"<!--.*?-->", "", html, flags=re.DOTALL))


async def test_the_browser_is_told_to_refuse_other_servers(page_of: str) -> None:
    page = await ask(app_of(Api(), page_of), "GET", "/docs").done()
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert all(
        source in ("'self'", "'unsafe-inline'", "data:") for one in policy.values() for source in one.split()
    )


async def test_nothing_but_the_assets_is_served_beside_the_page() -> None:
    for name in ("redoc.standalone.js", "../core.py", "%2e%2e/core.py", ""):
        assert (await ask(Api().app, "GET", f"/docs/{name}").done()).status == 404


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hang up on requests to other machines: browsers' own traffic does not leave this one."""
    await reader.readline()
    writer.close()


def asked_by_pages_of(origin: str, net_log: Path) -> list[str]:
    """Return the addresses that pages of an origin made the browser request."""
    events = json.loads(net_log.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    return [params["url"] for params in asked if params["initiator"] == origin and "url" in params]


async def rendered(url: str, proxy: int, folder: Path) -> str:
    """Return the page as a browser has it once its scripts have run. The folder gets the log `net.json`."""
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--proxy-server=127.0.0.1:{proxy}", "--proxy-bypass-list=127.0.0.1",
        f"--user-data-dir={folder / 'profile'}", f"--log-net-log={folder / 'net.json'}",
        "--virtual-time-budget=20000", "--dump-dom", url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(200):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode()


@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine: install chromium")
@pytest.mark.parametrize("which", SHOWN if LARGE else ["public"])
async def test_a_browser_without_the_internet_shows_every_operation(which: str, tmp_path: Path) -> None:
    api = Api()
    proxy = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with proxy, served(app_of(api, which)) as url:
        dom = await rendered(f"{url}/docs", proxy.sockets[0].getsockname()[1], tmp_path)
    text = re.sub(r"<[^>]*>", " ", dom.replace("\u200b", "").replace("<wbr>", ""))
    for words in SHOWN[which]:
        assert words in text
    assert 'class="opblock' in dom
    asked = asked_by_pages_of(url, tmp_path / "net.json")
    assert {urlsplit(one).path for one in asked} >= {"/docs/swagger-ui.css", "/openapi.json"}
    assert [one for one in asked if not one.startswith((url + "/", "data:"))] == []
    assert api.answered() == {
        (route, "200"): 1 for route in ("/docs", "/openapi.json")
    } | {("/docs/{name}", "200"): 2}  # fmt: skip
