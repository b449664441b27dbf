"""The metrics page and the registries of all processes name the same series, in both directions."""

import re
from pathlib import Path

from live_series import emitted

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `((?:mambaserve_|vllm:)[a-z0-9_:]+)` \| ([^|]+) \|", re.MULTILINE)


def documented() -> dict[str, str]:
    """Name -> type; an alias has that of the series it stands for."""
    rows: dict[str, str] = dict(ROW.findall(PAGE.read_text()))
    of = re.compile("`(mambaserve_[a-z_]+)`")
    return {
        name: rows[found[1]] if name.startswith("vllm:") and (found := of.search(what)) else what
        for name, what in rows.items()
    }


def test_every_series_is_documented_and_every_documented_series_is_emitted() -> None:
    assert set(documented()) == set(emitted())


def test_the_documented_types_are_those_on_the_wire() -> None:
    wire = emitted()
    known = {name: kind for name, kind in documented().items() if kind in ("counter", "gauge", "histogram")}

    assert len(known) > 50
    assert {name: wire[name] for name in known} == known
