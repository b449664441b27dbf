"""`/docs`: Swagger UI over `/openapi.json`, light or dark as the system is. `publish` adds it.

The library's files are those of an installed package and the page's own are of this one, so the page works
without the internet. `web_page` serves both.
"""

import importlib.resources
from pathlib import Path

from fastapi import FastAPI

from mamba_edge.web_page import add_web_page

_LIBRARY = Path(str(importlib.resources.files("fastapi_offline"))) / "static"
_OWN = Path(str(importlib.resources.files("mamba_edge"))) / "api_docs"
_FILES = {
    "swagger-ui.css": _LIBRARY / "swagger-ui.css",
    "swagger-ui-bundle.js": _LIBRARY / "swagger-ui-bundle.js",
    "page.css": _OWN / "page.css",
    "page.js": _OWN / "page.js",
}
"""Each file that the page loads, by its name below the page."""


def add_docs_page(app: FastAPI) -> None:
    """Serve the page and its files. Swagger UI writes styles into its elements."""
    add_web_page(app, "/docs", _OWN / "page.html", _FILES, inline_styles=True)
