"""The files of the status page: all of this server, none inline, with colours that can be read."""

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import urljoin

import pytest

import mamba_edge
from asgi import ask
from scripted_engine import Api

FOLDER = Path(mamba_edge.__file__).parent / "ui"
PAGE = (FOLDER / "index.html").read_text()
STYLE = (FOLDER / "style.css").read_text()
THEMES = ("light", "dark")
TEXT_ON = [
    *((text, behind) for text in ("text", "dim", "link", "good", "bad") for behind in ("page", "panel")),
    ("on-accent", "accent"),
]
SHAPES = ["owner-live", "owner-tracking", "owner-cached", "owner-fenced", "owner-pages", "dim"]


async def test_each_file_is_served_as_what_it_is_and_may_load_from_here_alone() -> None:
    app = Api().app
    for path in FOLDER.iterdir():
        name = "/ui" if path.name == "index.html" else f"/ui/{path.name}"
        asked = await ask(app, "GET", name).done()
        assert (asked.status, asked.body) == (200, path.read_bytes())
        kind = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}[path.suffix]
        assert asked.headers["content-type"].startswith(kind)
        policy = dict(
            one.strip().split(" ", 1) for one in asked.headers["content-security-policy"].split(";")
        )
        assert policy.pop("default-src") == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


async def test_nothing_else_is_below_the_page() -> None:
    for name in ("index.html", "../status_page.py", "%2e%2e/status_page.py", "none.js"):
        assert (await ask(Api().app, "GET", f"/ui/{name}").done()).status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_bare_address_leads_to_the_page(method: str) -> None:
    asked = await ask(Api().app, method, "/").done()
    assert asked.status == 307
    assert urljoin("http://x/behind/a/prefix/", asked.headers["location"]) == "http://x/behind/a/prefix/ui"
    other = await ask(Api().app, "POST", "/").done()
    assert (other.status, set(other.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


async def test_the_admin_server_has_no_such_page() -> None:
    assert (await ask(Api().admin, "GET", "/ui").done()).status == 404


def test_every_address_is_relative_so_that_a_prefix_of_a_proxy_does_not_matter() -> None:
    named = re.findall(r"""(?:src|href)="([^"#][^"]*)\"""", PAGE)
    for script in FOLDER.glob("*.js"):
        named += re.findall(r"""(?:from|ask\(|import\() ?"([^"]+)\"""", script.read_text())
    assert {"ui/app.js", "ui/style.css", "v1/status", "v1/chat/completions", "./server.js"} <= set(named)
    assert [one for one in named if one.startswith(("/", "http"))] == []


def test_no_script_and_no_style_is_inline_and_no_text_becomes_markup() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", PAGE) == []
    for script in FOLDER.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script.read_text())


def test_the_key_goes_nowhere_but_into_the_header() -> None:
    stores = [path.name for path in FOLDER.glob("*.js")
              if re.search(r"Storage|cookie|indexedDB", path.read_text())]  # fmt: skip
    assert stores == []


def colours(theme: str) -> dict[str, str]:
    pairs = re.findall(r"--([\w-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)", STYLE)
    return {name: each[THEMES.index(theme)] for name, *each in pairs}


def luminance(colour: str) -> float:
    """Return the luminance that WCAG 2 defines."""
    parts = [int(colour[at:end], 16) / 255 for at, end in pairwise((0, 2, 4, 6))]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_and_shapes_can_be_told_from_what_is_behind_them(theme: str) -> None:
    found = colours(theme)
    assert {pair for pair in TEXT_ON if contrast(found[pair[0]], found[pair[1]]) < 4.5} == set()
    assert [name for name in SHAPES if contrast(found[name], found["page"]) < 3] == []
