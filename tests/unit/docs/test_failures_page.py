"""The page of what happens when something fails names tests that exist, and each line has one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LINES = [
    line
    for line in (ROOT / "docs/reference/failures.md").read_text().splitlines()[1:]
    if line.startswith("| ") and not line.startswith(("| ---", "| what fails"))
]


def test_each_line_names_tests_that_exist() -> None:
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert len(LINES) > 10
    for line in LINES:
        named = re.findall(r"`(test_\w+)`", line)
        assert named, line
        assert set(named) <= found, set(named) - found
