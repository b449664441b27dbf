"""The page about the state cache names tests that exist, every invariant and all 64 traps."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/state-cache.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 40
    assert [name for name in sorted(named) if f"def {name}(" not in there] == []


def test_every_invariant_and_every_trap_has_its_line() -> None:
    rows = re.findall(r"^\| (\w+) \|", PAGE, re.MULTILINE)
    counts = {"P": 7, "O": 9, "W": 9, "L": 4, "T": 11, "K": 1, "N": 3}
    invariants = [f"{letter}{i}" for letter, count in counts.items() for i in range(1, count + 1)]
    assert rows == invariants + [str(number) for number in range(1, 65)]
