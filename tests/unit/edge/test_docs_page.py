"""The docs page: what it shows and sends in a browser, also behind a path prefix, and to no other machine."""

import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from asgi import ask
from browser import BROWSER, Page, browser_page
from eventually import PATIENCE
from mamba_server import wire
from matrix_size import LARGE
from scripted_engine import Api
from served_app import PREFIX, behind_prefix, served

HERE = "http://127.0.0.1:8000/behind/a/proxy/"
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


async def test_every_address_in_the_page_and_its_files_is_relative_and_of_the_same_server(
    page_of: str,
) -> None:
    app = app_of(Api(), page_of)
    page = await ask(app, "GET", "/docs").done()
    assert page.headers["content-type"].startswith("text/html")
    html = page.body.decode()
    named = re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)["']""", html)
    script = (await ask(app, "GET", "/docs/page.js").done()).body.decode()
    named += re.findall(r"""\burl:\s*["']([^"']*)["']""", script)
    loaded = [url for url in named if not url.startswith("data:")]
    assert "openapi.json" in loaded
    for url in loaded:
        place = urljoin(HERE, url)
        assert place.startswith(HERE)
        asset = await ask(app, "GET", f"/{place.removeprefix(HERE)}").done(PATIENCE)
        assert asset.status == 200
        if url.endswith(".css"):
            fetched = re.findall(rb"""(?:url\(|@import)\s*["']?([^"')\s]+)""", asset.body)
            assert all(one.startswith(b"data:") for one in fetched)
    assert not re.search(r"https?://", re.sub(r"<!--.*?-->", "", html + script, flags=re.DOTALL))


async def test_the_browser_is_told_to_refuse_other_servers_and_scripts_that_are_no_file(page_of: str) -> None:
    page = await ask(app_of(Api(), page_of), "GET", "/docs").done()
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"]) == ("'none'", "'self'")
    assert all(
        source in ("'none'", "'self'", "'unsafe-inline'", "data:")
        for one in policy.values()
        for source in one.split()
    )


async def test_nothing_but_the_assets_is_served_beside_the_page() -> None:
    for name in ("redoc.standalone.js", "page.html", "../core.py", "%2e%2e/core.py"):
        assert (await ask(Api().app, "GET", f"/docs/{name}").done()).status == 404


COMPLETION = """[...document.querySelectorAll('.opblock')].find(
    (each) => each.innerText.replaceAll('\u200b', '').includes('/v1/completions'))"""
BRIGHT = """(() => {
    const { color, backgroundColor } = getComputedStyle(document.querySelector('.swagger-ui'));
    return [color, backgroundColor].map((each) => Math.max(...each.match(/\\d+/g).slice(0, 3).map(Number)));
})()"""
"""The brightness of text and ground."""


@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine: install chromium")
@pytest.mark.parametrize("which", SHOWN if LARGE else ["public"])
async def test_a_browser_without_the_internet_shows_every_operation_and_sends_its_example_by_night(
    which: str, tmp_path: Path
) -> None:
    api = Api()

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            api.engine.delta("green tea", of=len(api.engine.requests) - 1, finish_reason="stop")

    api.engine.process.react = react
    async with served(behind_prefix(app_of(api, which))) as host, browser_page(tmp_path) as page:
        await page.size(1280, 900)
        url = f"{host}{PREFIX}"
        await page.open(f"{url}/docs/", lands=f"{url}/docs")
        await page.until("document.querySelectorAll('.opblock').length")
        text = str(await page.run("document.body.innerText")).replace("\u200b", "")
        for words in SHOWN[which]:
            assert words in text
        assert "Servers" not in text
        by_day, _ = await page.run(BRIGHT)
        await page.size(1280, 900, "dark")
        await page.until("document.documentElement.classList.contains('dark-mode')")
        by_night, ground = await page.run(BRIGHT)
        assert by_day < 100 < by_night
        assert ground < 100
        if which == "public":
            await send_the_example_of_a_completion(page, url)
            if LARGE:
                await page.open(f"{host}/docs")
                await page.until("document.querySelectorAll('.opblock').length")
                await send_the_example_of_a_completion(page, host)
        title = await page.run("document.querySelector('.info .title').firstChild.textContent")
        assert await page.run("document.title") == f"{title}: API"
        assert [one for one in page.asked if not one.startswith((f"{host}/", "data:"))] == []
        assert page.complaints == []
    paths = {urlsplit(one).path for one in page.asked}
    assert paths >= {f"{PREFIX}/docs/swagger-ui.css", f"{PREFIX}/docs/page.js", f"{PREFIX}/openapi.json"}


async def send_the_example_of_a_completion(page: Page, url: str) -> None:
    """Open the operation and send what is filled in; the request and its curl command go to `url`."""
    await page.run(f"{COMPLETION}.querySelector('.opblock-summary-control').click()")
    # Nothing has to be filled in: the page fills the example in, a moment after it shows the button.
    await page.until(f"{COMPLETION}.querySelector('.execute') !== null")
    await page.until(f"/prompt/.test({COMPLETION}.querySelector('textarea')?.value)")
    await page.run(f"{COMPLETION}.querySelector('.execute').click()")
    await page.until(f"/green tea/.test({COMPLETION}.innerText)")
    assert [one for one in page.asked if one.endswith("/v1/completions")][-1] == f"{url}/v1/completions"
    assert f"'{url}/v1/completions'" in await page.run(f"{COMPLETION}.querySelector('.curl').innerText")
