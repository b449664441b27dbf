"""The pages of a server: one policy for `/ui` and `/docs`, at every address, and no file sent twice."""

from urllib.parse import urljoin

from asgi import ask
from scripted_engine import Api

PAGES = {
    "/ui": ("ui/app.js", "ui/style.css"),
    "/docs": ("docs/page.js", "docs/page.css", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js"),
}
"""Files of each page."""


async def test_a_browser_may_neither_guess_a_type_nor_keep_an_old_version_and_gets_nothing_twice() -> None:
    app = Api().app
    for path in (each for page, files in PAGES.items() for each in (page, *(f"/{name}" for name in files))):
        first = await ask(app, "GET", path).done()
        assert first.status == 200
        assert first.headers["x-content-type-options"] == "nosniff"
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in first.headers["content-security-policy"]
        for tag, status, body in ((first.headers["etag"], 304, b""), ('"another"', 200, first.body)):
            again = await ask(app, "GET", path, headers=[("If-None-Match", tag)]).done()
            assert (again.status, again.body) == (status, body)
            assert again.headers["etag"] == first.headers["etag"]
            assert again.headers["cache-control"] == "no-cache"


async def test_with_a_slash_at_its_end_the_address_leads_back_to_the_page() -> None:
    app = Api().app
    for path in PAGES:
        asked = await ask(app, "GET", f"{path}/").done()
        assert asked.status == 307
        place = urljoin(f"http://x/behind/a/prefix{path}/", asked.headers["location"])
        assert place == f"http://x/behind/a/prefix{path}"
