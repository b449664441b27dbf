"""`python -m benchmarks.pictures`: writes the pictures of measurements into docs/assets.

`--check` writes nothing and ends with exit code 1 where a picture is not that of the newest result. The
results come from `python -m benchmarks.cache.arena_history`, `benchmarks.queue_balance` and
`benchmarks.fleet_history`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cache.plots import newest
from benchmarks.pictures.measured import arena, routing, scaling
from benchmarks.pictures.terminal import picture, session

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "docs/assets"
MEASURED: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "arena-over-time": ("arena-history", arena),
    "routing-by-load": ("routing-waiting", routing),
    "scaling-on-a-trace": ("fleet-history-drift", scaling),
}
"""Name of the result and its drawing, by picture."""


def pictures() -> dict[str, str]:
    """Return every picture by its name."""
    drawn = {name: draw(newest(result) or {}) for name, (result, draw) in MEASURED.items()}
    page = (ROOT / "docs/tutorial/first-deployment.md").read_text(encoding="utf-8")
    lines = session(page, left_out=("mambaserve plan",))
    return {
        **drawn,
        "terminal-session": picture("A model is served, asked and looked at in a terminal", lines),
    }


def main() -> int:
    """Write the pictures, or compare them with what is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a picture is out of date"
    )
    check = parser.parse_args().check
    stale = []
    for name, svg in pictures().items():
        path = ASSETS / f"{name}.svg"
        if path.exists() and path.read_text(encoding="utf-8") == svg:
            continue
        stale.append(name)
        if not check:
            path.write_text(svg, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
    if check and stale:
        print(f"{', '.join(stale)}: run `python -m benchmarks.pictures`", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
