"""`scripts/setup`: uv installs, pip where uv cannot; all they say is kept, shown are lines that one reads."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PIP = """#!/bin/bash
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  *compileall*) mkdir -p package/__pycache__; echo compiled > package/__pycache__/module.pyc;;
  -c*CONFIG_ARGS*) [ -z "$SLOW" ] || echo 3.11; [ -n "$SLOW" ];;
  -c*) exit 0;;
  *requirements/uv.lock*) [ -z "$UV" ] || { echo "$UV" > .venv/bin/uv; chmod +x .venv/bin/uv; };;
  *--require-hashes*)
    for number in $(seq 60); do echo "Collecting package-$number==1"; echo "  Downloading it"; done
    echo "$FAILURE"; [ -z "$FAILURE" ] || exit 1
    echo "Installing collected packages: all";;
esac
"""

UV = """#!/bin/bash
echo "Downloading small (1.2MiB)"; echo "Downloading torch (514.2MiB)"
echo "Installed 171 packages in 3.1s"; for number in $(seq 60); do echo " + package-$number==1"; done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a source tree whose Python has a stub pip, with no uv on the path."""
    locks = "requirements/dev.lock", "requirements/uv.lock"
    for name in ("scripts/setup", "scripts/install_hooks", *locks, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP)
    python.chmod(0o755)
    return tmp_path


TOOLS = (
    "bash", "env", "cat", "sha256sum", "cut", "pwd", "grep", "date", "dirname", "tee", "awk", "tail", "seq",
    "chmod", "cp", "find", "mkdir", "mv", "rm", "stat", "tar",
)  # fmt: skip


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script. Its stubs read UV, what the uv that pip fetches runs; FAILURE of pip; and SLOW."""
    tools = checkout / "tools"
    tools.mkdir(exist_ok=True)
    for name in TOOLS:
        if (found := shutil.which(name)) and not (tools / name).exists():
            (tools / name).symlink_to(found)
    stubs = {"UV": "", "FAILURE": "", "SLOW": "", "PYTHON": str(checkout / ".venv/bin/python")}
    places = {"PATH": str(tools), "XDG_CACHE_HOME": str(checkout / "caches")}
    return subprocess.run(
        [str(tools / "bash"), str(checkout / "scripts/setup")],
        env={**stubs, **places, "LC_ALL": os.environ.get("LC_ALL", "C"), **environment},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("slow", "chosen"), [("", "usual"), ("yes", "system")])
def test_a_python_without_optimizations_gives_way_to_the_systems(
    checkout: Path, slow: str, chosen: str
) -> None:
    shutil.rmtree(checkout / ".venv")
    (checkout / "tools").mkdir()
    for name, path in (("usual", checkout / "tools/python3"), ("system", checkout / "system")):
        path.write_text(f"{PIP}# {name}\n")
        path.chmod(0o755)

    done = set_up(checkout, PYTHON="", SYSTEM_PYTHON=str(checkout / "system"), SLOW=slow)

    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv/bin/python").read_text().endswith(f"# {chosen}\n")
    assert ("PYTHON=python3" in done.stderr) is bool(slow)


def test_what_was_compiled_for_the_same_files_is_not_compiled_again(checkout: Path) -> None:
    module = checkout / ".venv/lib/python3.11/site-packages/package/__init__.py"
    compiled = module.parent / "__pycache__/module.pyc"

    def compiles(written_at: int) -> bool:
        shutil.rmtree(module.parent, ignore_errors=True)
        module.parent.mkdir(parents=True)
        module.write_text("")
        os.utime(module, (written_at, written_at))
        (checkout / ".venv/.ready").unlink(missing_ok=True)
        done = set_up(checkout)
        assert done.returncode == 0, done.stderr
        assert compiled.read_text() == "compiled\n"
        return "compiling" in done.stderr

    assert [compiles(7), compiles(7), compiles(8), compiles(7)] == [True, False, True, True]


def test_the_uv_that_pip_fetches_installs_everything(checkout: Path) -> None:
    done = set_up(checkout, UV=UV, FAILURE="pip is not asked for packages")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) < 10
    assert "setup: Downloading torch (514.2MiB)" in lines
    assert (checkout / ".venv/setup.log").read_text().count(" + package") == 120
    assert (checkout / ".venv/.ready").is_file()


def test_pip_installs_where_uv_cannot(checkout: Path) -> None:
    done = set_up(checkout, UV="#!/bin/bash\necho 'error: no such index'; exit 2")
    assert done.returncode == 0, done.stderr
    assert "error: no such index" in done.stderr
    assert "setup: 50 packages found" in done.stderr
    assert (checkout / ".venv/.ready").is_file()


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
    done = set_up(checkout, FAILURE="ERROR: hash mismatch")
    assert done.returncode == 1
    assert "ERROR: hash mismatch" in done.stderr
    assert ".venv/setup.log" in done.stderr
    assert not (checkout / ".venv/.ready").exists()
