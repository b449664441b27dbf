"""The walk of a prompt's tokens as the docs tell it: short, and neither invented nor incomplete."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "walk-of-a-prompt.md").read_text()
WALK = re.findall(r"^(\d+)\. `([^`]+)`: \S", PAGE, re.MULTILINE)
BESIDE = re.findall(r"^- `([^`]+)`: \S", PAGE, re.MULTILINE)
ENGINE = ("engine", "cache", "model")


def test_the_walk_passes_at_most_thirty_files_each_of_which_is_there_once() -> None:
    files = [path for _, path in WALK]
    assert [int(number) for number, _ in WALK] == list(range(1, len(WALK) + 1))
    assert len(files) <= 30
    assert len(files) == len(set(files))
    assert [path for path in [*files, *BESIDE] if not (ROOT / path).is_file()] == []


def test_from_the_wire_on_it_names_every_file_that_handles_token_ids_and_no_other() -> None:
    server = ROOT / "server" / "mamba_server"
    handled = {
        path.relative_to(ROOT).as_posix()
        for path in [server / "wire.py", *(p for name in ENGINE for p in (server / name).rglob("*.py"))]
        if re.search(r"\b(known_)?token_ids\b", path.read_text())
    }
    named = {path for _, path in WALK[next(i for i, (_, p) in enumerate(WALK) if p.endswith("wire.py")) :]}
    # It decodes the message and hands it on: the one that need not spell them.
    assert handled - {*named, *BESIDE} == set()
    assert named - handled == {"server/mamba_server/engine/process.py"}
