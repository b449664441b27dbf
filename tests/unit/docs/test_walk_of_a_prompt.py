"""The walk of a prompt's tokens as the docs tell it: short, and neither invented nor incomplete."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "walk-of-a-prompt.md").read_text()
WALK = re.findall(r"^(\d+)\. `([^`]+)`: \S", PAGE, re.MULTILINE)
BESIDE = re.findall(r"^- `([^`]+)`: \S", PAGE, re.MULTILINE)
SERVER = ROOT / "server" / "mamba_server"
WIRE = next(place for place, (_, path) in enumerate(WALK) if path.endswith("wire.py"))
ENGINE = ("engine", "cache", "model")
IDS = r"\b(known_|prompt_)?token_ids\b"
CARRIERS = {
    "server/mamba_server/api/server.py",
    "server/mamba_edge/http_server.py",
    "server/mamba_edge/request_middleware.py",
    "server/mamba_server/api/app.py",
    "server/mamba_server/api/request_body.py",
    "server/mamba_edge/request_body.py",
    "server/mamba_server/api/engine_client.py",
    "server/mamba_server/api/engine_process.py",
}
"""They hold the prompt as bytes, or in a message, and need not spell its ids."""


def handling(*folders: Path) -> set[str]:
    """Files below these folders that name a prompt's ids."""
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {path.relative_to(ROOT).as_posix() for path in files if re.search(IDS, path.read_text())}


def test_the_walk_passes_at_most_thirty_files_each_of_which_is_there_once() -> None:
    files = [path for _, path in WALK]
    assert [int(number) for number, _ in WALK] == list(range(1, len(WALK) + 1))
    assert len(files) <= 30
    assert len(files) == len(set(files))
    assert [path for path in [*files, *BESIDE] if not (ROOT / path).is_file()] == []


def test_up_to_the_wire_it_names_every_file_that_handles_token_ids_and_the_carriers() -> None:
    handled = handling(SERVER / "api", ROOT / "server" / "mamba_text", ROOT / "server" / "mamba_edge")
    named = {path for _, path in WALK[:WIRE]}
    assert handled - {*named, *BESIDE} == set()
    assert named - handled == {*CARRIERS, "operator/mamba_api/openai.py"}  # where a client's ids are `prompt`


def test_each_file_up_to_the_wire_is_imported_by_another_on_the_walk() -> None:
    files = [path for _, path in WALK[: WIRE + 1]]
    text = {path: (ROOT / path).read_text() for path in files}

    def imported(path: str) -> bool:
        package, _, module = path.partition("/")[2].removesuffix(".py").replace("/", ".").rpartition(".")
        line = rf"^from ({package}\.{module} import|{package} import .*\b{module}\b)"
        return any(re.search(line, text[other], re.MULTILINE) for other in files if other != path)

    assert [path for path in files if not imported(path)] == ["server/mamba_server/api/server.py"]


def test_from_the_wire_on_it_names_every_file_that_handles_token_ids_and_no_other() -> None:
    handled = handling(*(SERVER / name for name in ENGINE)) | {"server/mamba_server/wire.py"}
    named = {path for _, path in WALK[WIRE:]}
    # It decodes the message and hands it on: the one that need not spell them.
    assert handled - {*named, *BESIDE} == set()
    assert named - handled == {"server/mamba_server/engine/engine_loop.py"}
