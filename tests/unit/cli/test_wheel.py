"""The wheel with its base dependencies alone: each command works, or says what to install."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer.main

from distributions import brought_by
from mamba_cli.main import application

ROOT = Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:9"
QUICK_START = str(ROOT / "examples/01-quick-start/mamba.yaml")
# Arguments, exit code, and the extra that is missing ("" = none).
RUNS: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--version",), 0, ""),
    (("bench", "serve", NOWHERE, "--requests", "1"), 1, ""),
    (("chat", NOWHERE, "hello"), 1, ""),
    (("config", "gateway"), 0, ""),
    (("config", "operator"), 0, ""),
    (("config", "serve"), 0, ""),
    (("crd",), 0, ""),
    (("doctor", "--timeout", "0.01"), 1, ""),
    (("download", "hf://nobody/nothing"), 2, "server"),
    (("gateway", "--backend", NOWHERE), 2, "gateway"),
    (("operator",), 2, "operator"),
    (("plan", "builtin://tiny-recall"), 0, ""),
    (("plan", QUICK_START), 0, ""),
    (("ps",), 0, ""),
    (("run", "builtin://tiny-recall", "hello"), 2, "server"),
    (("scaling", "replay", "no-such-object"), 2, "operator"),
    (("serve", "builtin://tiny-recall"), 2, "server"),
    (("session", "list"), 2, "gateway"),
    (("status", NOWHERE), 1, ""),
    (("status", "-n", "default"), 2, "operator"),
    (("stop", "nothing-of-this-name"), 2, ""),
    (("up", QUICK_START, "--port", "0", "--once"), 2, "server"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command `mambaserve` of an environment with the wheel and the base dependencies alone."""
    directory = tmp_path_factory.mktemp("base")
    environment = directory / "environment"
    python = environment / "bin/python"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory)
    [wheel] = directory.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q")
    _run(*pip, "--no-deps", "--no-index", "--no-compile", wheel)
    [packages] = (environment / "lib").glob("python*/site-packages")
    for here in brought_by(()).values():
        for file in here.files or ():
            # By file: several distributions share the folder of a namespace package.
            if file.parts[0] != ".." and not (target := packages / file).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(here.locate_file(file))))
    return environment / "bin/mambaserve"


def _run(*command: Any) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _call(mambaserve: Path, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAMBASERVE_", "PYTHON"))}
    return subprocess.run(
        [str(mambaserve), *arguments], cwd=mambaserve.parent, capture_output=True, text=True, timeout=120,
        env={**clean, "COLUMNS": "200"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*words, name))


@pytest.mark.slow
def test_every_command_of_the_bare_wheel_works_or_says_which_extra_to_install(base: Path) -> None:
    """And every --help is shown, whatever the command needs to run."""
    helps = [(*words, "--help") for words in _commands(typer.main.get_command(application()))]
    ran = {words[0] for words, _, _ in RUNS}
    assert {words[0] for words in helps if len(words) > 1} <= ran
    expected = [*RUNS, *((words, 0, "") for words in helps)]
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda each: _call(base, each[0]), expected))
    for (words, code, extra), found in zip(expected, done, strict=True):
        said = f"mambaserve {' '.join(words)}\n{found.stdout}{found.stderr}"
        assert "Traceback" not in said, said
        assert found.returncode == code, said
        assert ("pip install" in found.stderr) == bool(extra), said
        if extra:
            [line] = found.stderr.splitlines()
            assert line.startswith("error: ")
            assert line.endswith(f"pip install 'mambaserve[{extra}]'"), said
