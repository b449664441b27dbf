"""Writes one benchmark's findings as JSON and Markdown, with where, when and with what they were made."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import facts

RESULTS = Path(__file__).parents[1] / "results"


def header(title: str, date: str, machine: dict[str, Any]) -> list[str]:
    """Return the lines above every table. Pure."""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    load = ", ".join(map(str, machine["load_average"]))
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return [
        f"# {title}, {date[:10]}",
        "",
        f"- machine: {where}; load average at the end {load}",
        f"- versions: Python {machine['python']}, {versions}; commit {machine['commit']}",
    ]


def write(name: str, found: dict[str, Any], lines: Sequence[str], folder: Path = RESULTS) -> Path:
    """Write `DATE-name.json` and `.md` into `folder`, print the Markdown; the path of the JSON."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine = facts()
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{date[:10]}-{name}"
    whole = {"benchmark": name, "date": date, "machine": machine, **found}
    path = stem.with_suffix(".json")
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    text = "\n".join([*header(name, date, machine), *lines]).rstrip() + "\n"
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return path


def print_and_keep(record: dict[str, Any], text: str, out: Path | None) -> None:
    """Print the Markdown; with `out`, the path of a JSON file, also write both there, side by side."""
    if out is not None:
        out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text.rstrip() + "\n", encoding="utf-8")
    print(text)
