"""The wheel with its base dependencies alone: each command works, or says what to install."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest
import typer.main

from distributions import brought_by
from mamba_cli.main import application
from matrix_size import LARGE
from release.packages import build_packages, run_program
from release.platform_wheel import write_platform_wheel

ROOT = Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:9"
QUICK_START = str(ROOT / "examples/01-quick-start/mamba.yaml")
FORKED_COMMANDS = ROOT / "tests/support/forked_commands.py"
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
    (("list",), 2, "server"),
    (("operator",), 2, "operator"),
    (("plan", "builtin://tiny-recall"), 0, ""),
    (("plan", QUICK_START), 0, ""),
    (("ps",), 0, ""),
    (("pull", "nobody/nothing"), 2, "server"),
    (("rollout", "status", "nothing"), 2, "gateway"),
    (("run", "builtin://tiny-recall", "hello"), 2, "server"),
    (("scaling", "replay", "no-such-object"), 2, "operator"),
    (("serve", "builtin://tiny-recall"), 2, "server"),
    (("session", "list"), 2, "gateway"),
    (("status", NOWHERE), 1, ""),
    (("status", "-n", "default"), 2, "operator"),
    (("stop", "nothing-of-this-name"), 2, ""),
    (("usage", NOWHERE), 1, ""),
    (("why", "nothing", "--url", NOWHERE), 2, "gateway"),
    (("up", QUICK_START, "--port", "0", "--once"), 2, "server"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command `mambaserve` of an environment with the wheel and the base dependencies alone."""
    packages = _environment(tmp_path_factory.mktemp("base"))
    for here in brought_by(()).values():
        for file in here.files or ():
            # By file: several distributions share the folder of a namespace package.
            if file.parts[0] != ".." and not (target := packages / file).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source := Path(str(here.locate_file(file))))
                # To compile what dozens of packages hold takes longer than all of the test.
                if target.suffix == ".py":
                    _link_bytecode(source, target)
    return packages.parents[2] / "bin/mambaserve"


def _link_bytecode(source: Path, target: Path) -> None:
    ours, theirs = (Path(cache_from_source(str(path))) for path in (target, source))
    if theirs.exists() and not ours.exists():
        ours.parent.mkdir(exist_ok=True)
        ours.symlink_to(theirs)


def _environment(directory: Path, *, library: bool = False) -> Path:
    """Install the wheel of a release, and nothing else, without a network; return its site-packages.

    library: install the wheel that has the compiled kernels.
    """
    environment = directory / "environment"
    python = environment / "bin/python"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    build_packages(ROOT, directory, seconds=0)
    [wheel] = directory.glob("*.whl")
    if library:
        wheel = write_platform_wheel(wheel, _compiled(directory))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q")
    _run(*pip, "--no-deps", "--no-index", "--no-compile", wheel)
    [packages] = (environment / "lib").glob("python*/site-packages")
    return packages


def _compiled(directory: Path) -> Path:
    """Compile the kernels of a copy of the sources, as a release does; return the library."""
    sources = directory / "kernels"
    ignored = shutil.ignore_patterns("shipped", "__pycache__")
    shutil.copytree(ROOT / "kernels/mamba_kernels", sources / "mamba_kernels", ignore=ignored)
    program = [sys.executable, "-m", "mamba_kernels.cpu.build", "--ship"]
    return Path(run_program(program, sources, {"PYTHONPATH": str(sources)}).splitlines()[-1])


def _run(*command: Any) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _call(mambaserve: Path, arguments: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return _in_environment(mambaserve, [str(mambaserve), *arguments], **variables)


def _call_all(
    mambaserve: Path, calls: Sequence[Sequence[str]], outputs: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Call the command with each of these arguments, in processes that share the imports."""
    python = str(mambaserve.with_name("python"))
    # -P: no module beside that program is one of the environment's.
    program = [python, "-P", str(FORKED_COMMANDS), str(mambaserve), str(outputs)]
    ran = _in_environment(mambaserve, program, stdin=json.dumps(calls))
    assert ran.returncode == 0, ran.stderr
    return [
        subprocess.CompletedProcess(
            calls[number], exit_code, *((outputs / f"{number}.{end}").read_text() for end in ("out", "err"))
        )
        for number, exit_code in enumerate(json.loads(ran.stdout))
    ]


def _in_environment(
    mambaserve: Path, command: list[str], stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MAMBASERVE_", "PYTHON"))}
    return subprocess.run(
        command, cwd=mambaserve.parent, capture_output=True, text=True, input=stdin,
        env={**clean, "COLUMNS": "200", **variables},
    )  # fmt: skip


def _commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*words, name))


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a busy machine fifty commands take minutes
def test_every_command_of_the_bare_wheel_works_or_says_which_extra_to_install(
    base: Path, tmp_path: Path
) -> None:
    """And --help is shown, whatever the command needs to run; of those that need nothing, by `make gates`."""
    helps = [(*words, "--help") for words in _commands(typer.main.get_command(application()))]
    ran = {words[0] for words, _, _ in RUNS}
    assert {words[0] for words in helps if len(words) > 1} <= ran
    lacking = {words[0] for words, _, extra in RUNS if extra}
    shown = [words for words in helps if LARGE or words[0] in lacking | {"--help"}]
    expected = [*RUNS, *((words, 0, "") for words in shown)]
    done = _call_all(base, [words for words, _, _ in expected], tmp_path)
    assert _call(base, ["--version"]).stdout == done[0].stdout
    for (words, code, extra), found in zip(expected, done, strict=True):
        said = f"mambaserve {' '.join(words)}\n{found.stdout}{found.stderr}"
        assert "Traceback" not in said, said
        assert found.returncode == code, said
        assert ("pip install" in found.stderr) == bool(extra), said
        if extra:
            [line] = found.stderr.splitlines()
            assert line.startswith("error: ")
            # The command names the wheel that pip recorded, since no index has the project.
            assert re.search(rf"pip install '\S+\[{extra}\]'$", line), said


@pytest.mark.slow
@pytest.mark.skipif(not LARGE, reason="two CPU minutes, most of them a compiler's: make gates")
def test_the_wheel_answers_with_compiled_kernels_where_there_is_neither_checkout_nor_compiler(
    tmp_path: Path,
) -> None:
    """The dependencies are those of this environment, whose own mambaserve comes from the checkout."""
    packages = _environment(tmp_path, library=True)
    # Last on the path: the wheel's modules come first, and .pth files of the other folder are not read.
    (packages / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    mambaserve = packages.parents[2] / "bin/mambaserve"
    where = [str(mambaserve.with_name("python")), "-c", "import mamba_server; print(mamba_server.__file__)"]
    printed = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(printed.strip()).is_relative_to(packages)
    bare = {"CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = _call(mambaserve, ("run", "builtin://tiny-recall", "hello"), **bare)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()
    assert "compiling" not in answer.stderr
    examined = _call(mambaserve, ("doctor", "--output", "json", "--timeout", "0.01"), **bare)
    findings = {each["subject"]: each for each in json.loads(examined.stdout)}
    assert findings["kernels"]["text"].startswith("C++ with ")
