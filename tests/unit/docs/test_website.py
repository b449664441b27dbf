"""The documentation as a website: every link leads somewhere, and nothing is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:)?//[^\s\">]+", re.IGNORECASE
)


def test_the_diagrams_are_those_that_the_script_draws() -> None:
    done = subprocess.run([sys.executable, "scripts/diagrams.py", "--check"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.tools
def test_every_page_is_on_the_website_which_loads_nothing_from_elsewhere() -> None:
    done = subprocess.run(["make", "site"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "dist/site"
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if not (site / "docs" / page).is_file()] == []
    assert 'id="serve"' in (site / "docs/reference/command-line.html").read_text()
    for page in site.rglob("*.html"):
        assert LOADED.search(page.read_text()) is None, page
