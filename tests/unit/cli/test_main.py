"""The door of the command line: exit codes, where messages go, pipes, and that help stays quick."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from mamba_cli import main
from mamba_cli.errors import CliError, InvalidInput, NoFittingPlan, RunFailed
from prefork import FORK_SERVER

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests" / "golden" / "configs"
Run = Callable[..., tuple[int, str, str]]


def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAMBASERVE_", "PYTHON"))}


def mambaserve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return FORK_SERVER.run("-m", "mamba_cli", *arguments, env={**clean(), **environment})


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `main` with a command that raises; its exit code and what it printed."""

    def run(error: Exception) -> tuple[int, str, str]:
        def command() -> None:
            raise error

        app = typer.Typer()
        app.command()(command)
        monkeypatch.setattr(main, "app", app)
        monkeypatch.setattr(main, "_collect", lambda _: None)
        monkeypatch.setattr(sys, "argv", ["mambaserve"])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [(RunFailed("x"), 1), (InvalidInput("x"), 2), (NoFittingPlan("x"), 3), (CliError("x"), 1)],
)
def test_each_kind_of_failure_has_its_exit_code_and_speaks_on_standard_error(
    fails: Run, error: CliError, code: int
) -> None:
    assert fails(error) == (code, "", "error: x\n")


def test_a_message_is_printed_as_it_is(fails: Run) -> None:
    """Neither read as markup, nor wrapped inside a path that somebody wants to copy."""
    path = "/a [dir]/" + "long/" * 60 + "[/file].yaml"
    _, _, said = fails(InvalidInput(f"{path}: no such file"))
    assert said == f"error: {path}: no such file\n"


def test_several_problems_are_several_lines(fails: Run) -> None:
    _, _, said = fails(InvalidInput("a.yaml: one\nb.yaml: two"))
    assert said.splitlines() == ["error: a.yaml: one", "b.yaml: two"]


def test_a_defect_is_not_dressed_up_as_a_user_s_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main, "_collect", lambda _: None)
    monkeypatch.setattr(main, "app", defect)
    with pytest.raises(ZeroDivisionError):
        main.run()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sreve"], "sreve"),
        (["plan"], "FILE_OR_MODEL"),
        (["plan", "a", "b"], "unexpected extra argument"),
        (["plan", "x", "--output", "xml"], "'xml' is not one of 'table', 'json', 'yaml'"),
        (["up"], "FILE"),
        (["up", "f.yaml", "--port", "70000"], "--port"),
        (["crd", "--output", "json"], "--output"),
        (["bench", "serve", "--requests", "0"], "--requests"),
        (["bench", "serve", "--spread", "1.1"], "--spread"),
        (["bench", "serve", "--shared-prefix", "nan"], "--shared-prefix"),
        (["bench", "serve", "--vocab-size", "8"], "--vocab-size"),
        (["bench", "serve", "--timeout", "0"], "--timeout"),
        (["bench", "trace"], "file"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_what_is_wrong(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["mambaserve", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main.run()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert words in said.err
    assert said.out == ""


def test_collecting_the_commands_loads_nothing_heavy() -> None:
    """Keep `--help` and shell completion fast."""
    heavy = ("torch", "numpy", "pydantic", "aiohttp", "fastapi", "kubernetes", "kopf", "transformers", "yaml")
    code = (
        f"from mamba_cli import main; import sys; main._collect(); print({set(heavy)!r} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_reader_that_leaves_early_is_no_failure_of_ours() -> None:
    done = subprocess.run(
        ["/bin/bash", "-c", f"{sys.executable} -m mamba_cli crd | head -c 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == b""


def test_a_full_device_is_one_line_and_an_exit_code() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mamba_cli", "crd"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


def test_streams_that_the_caller_closed_lead_nowhere() -> None:
    command = f"{sys.executable} -m mamba_cli crd <&- >&- 2>&-"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_output_that_nobody_reads_any_more_when_a_command_ends_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    code = (
        "import sys; from mamba_cli import main; "
        "main._collect = lambda _: None; main.app = lambda: sys.stdout.write('never read'); main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("command", "columns"),
    [(["serve"], 60), (["serve"], 130), (["gateway"], 60), (["operator"], 60), (["bench", "serve"], 60)],
)
def test_help_cuts_no_name_and_has_short_titles_however_narrow_the_terminal(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(main, "app", typer.Typer())
    main._collect()
    monkeypatch.setattr(main, "_collect", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["mambaserve", *command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert not ended.value.code
    said = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", said, re.MULTILINE)
    # A wide terminal has them in boxes.
    assert ("Options" in titles) == (columns < 80)
    assert [title for title in titles if "." in title or len(title) > 35] == []
    words = set(re.split(r"[\s│,/;\]]+", said))
    group: Any = typer.main.get_command(main.app)
    for name in command:
        group = group.commands[name]
    for option in group.params:
        if option.param_type_name == "option" and option.name != "help":
            assert {*option.opts, option.envvar} <= words


@pytest.mark.parametrize(("command", "columns"), [([], 60), ([], 130), (["bench"], 60), (["scaling"], 80)])
def test_a_list_of_commands_says_whole_what_each_is_for(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(main, "app", typer.Typer())
    main._collect()
    monkeypatch.setattr(main, "_collect", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["mambaserve", *command, "--help"])
    with pytest.raises(SystemExit):
        main.run()
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    group: Any = typer.main.get_command(main.app)
    for name in command:
        group = group.commands[name]
    assert group.commands
    for name, each in group.commands.items():
        clause = re.split(r"[.:;](?:\s|$)", each.help)[0]
        assert f"{name} {' '.join(clause.split())}." in said


@pytest.mark.parametrize("columns", [60, 200])
def test_the_settings_are_shown_with_whole_names(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["mambaserve", "config"])
    with pytest.raises(SystemExit):
        main.run()
    words = capsys.readouterr().out.split()
    for name in ("--max-checkpoints-per-path", "MAMBASERVE_MAX_CHECKPOINTS_PER_PATH", "--port"):
        assert name in words


def test_ctrl_c_before_a_command_has_begun_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_collect", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert (ended.value.code, *capsys.readouterr()) == (130, "", "")


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["mambaserve", "--version"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert not ended.value.code
    assert capsys.readouterr().out == f"mambaserve {version('mambaserve')}\n"


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text((CONFIGS / "granite-4.0-h-350m.json").read_text())
    return str(tmp_path)


def test_a_locale_without_block_characters_still_shows_the_plan(small: str) -> None:
    # Python reads this variable when it starts.
    done = subprocess.run(
        [sys.executable, "-m", "mamba_cli", "plan", small, "--device-memory", "8Gi"],
        env={**clean(), "PYTHONIOENCODING": "latin-1"}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"strategy" in done.stdout


def test_a_pipe_gets_no_colours(small: str) -> None:
    done = mambaserve("plan", small, "--device-memory", "8Gi", TERM="xterm-256color")
    assert "strategy" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_path_that_the_system_cannot_look_at_is_named() -> None:
    done = mambaserve("plan", "x" * 300)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {'x' * 300}: ")
    assert "Traceback" not in done.stderr


def test_a_file_of_keys_that_is_not_there_is_named_by_the_gateway_s_option(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    done = mambaserve("gateway", "--backend", "http://127.0.0.1:9", "--port", "0", "--api-key-file", keys)
    assert done.returncode == 2
    assert done.stderr == f"error: --api-key-file: {keys}: No such file or directory\n"


def test_a_command_line_that_begins_with_a_command_loads_no_other_one() -> None:
    code = (
        "import sys; sys.argv = ['mambaserve', 'operator', '--help']; from mamba_cli import main\n"
        "try: main.run()\n"
        "finally: print(*sorted(name for name in sys.modules if name.startswith('mamba_cli.commands.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "mamba_cli.commands.operate", done.stderr
