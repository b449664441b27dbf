"""`scripts/setup` without uv: what pip says is kept, shown are lines that one reads."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PIP = """#!/bin/bash
case "$*" in
  -c*) exit 0;;
  *--require-hashes*)
    for number in $(seq 60); do echo "Collecting package-$number==1"; echo "  Downloading it"; done
    echo "$FAILURE"; [ -z "$FAILURE" ] || exit 1
    echo "Installing collected packages: all";;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a source tree whose Python has a stub pip, with no uv on the path."""
    for name in ("scripts/setup", "scripts/install_hooks", "requirements/dev.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP)
    python.chmod(0o755)
    return tmp_path


def set_up(checkout: Path, failure: str = "") -> subprocess.CompletedProcess[str]:
    tools = checkout / "tools"
    tools.mkdir(exist_ok=True)
    for name in (
        "bash",
        "env",
        "cat",
        "sha256sum",
        "cut",
        "pwd",
        "grep",
        "date",
        "dirname",
        "tee",
        "awk",
        "tail",
        "seq",
    ):
        if (found := shutil.which(name)) and not (tools / name).exists():
            (tools / name).symlink_to(found)
    environment = {"PATH": str(tools), "PYTHON": str(checkout / ".venv/bin/python"), "FAILURE": failure}
    return subprocess.run(
        [str(tools / "bash"), str(checkout / "scripts/setup")],
        env={**environment, "LC_ALL": os.environ.get("LC_ALL", "C")}, capture_output=True, text=True,
    )  # fmt: skip


def test_some_lines_of_progress_and_all_of_it_in_a_file(checkout: Path) -> None:
    done = set_up(checkout)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) < 8
    assert "setup: 50 packages found" in lines
    assert "setup: all fetched, installing" in lines
    assert (checkout / ".venv/setup.log").read_text().count("Collecting") == 60
    assert (checkout / ".venv/.ready").is_file()
    assert set_up(checkout).stderr == ""


def test_a_failure_shows_the_last_words_of_pip_and_is_tried_again(checkout: Path) -> None:
    done = set_up(checkout, failure="ERROR: hash mismatch")
    assert done.returncode == 1
    assert "ERROR: hash mismatch" in done.stderr
    assert ".venv/setup.log" in done.stderr
    assert not (checkout / ".venv/.ready").exists()
