"""`mambaserve up`: its options reach local mode, from flags and from the environment."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mamba_cli import main
from mamba_cli.errors import InvalidInput, NoFittingPlan, RunFailed

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of local mode; `code` is its exit code, `error` the exception that it raises."""
    seen: dict[str, Any] = {"code": 0}

    def bring_up(files: list[Path], **options: Any) -> int:
        seen.update(files=files, **options)
        if "error" in seen:
            raise seen["error"]
        return int(seen["code"])

    monkeypatch.setattr("mamba_cli.local.bring_up.bring_up", bring_up)
    return seen


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mambaserve", "up", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def test_one_machine_is_served_on_the_loopback_unless_told_otherwise(up: Run, asked: dict[str, Any]) -> None:
    assert up("a.yaml", "b.yaml") == (0, "")
    assert asked["files"] == [Path("a.yaml"), Path("b.yaml")]
    assert (asked["host"], asked["port"], asked["once"], asked["demo"]) == ("127.0.0.1", 8000, False, False)
    assert asked["logs"] is None


def test_flags_and_the_environment_reach_local_mode_and_flags_win(
    up: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_PORT", "9000")
    monkeypatch.setenv("MAMBASERVE_ONCE", "1")
    monkeypatch.setenv("MAMBASERVE_LOGS", "/var/log/x")
    up("a.yaml", "--port", "0", "--host", "0.0.0.0", "--demo")
    assert (asked["host"], asked["port"], asked["once"], asked["demo"]) == ("0.0.0.0", 0, True, True)
    assert asked["logs"] == Path("/var/log/x")


def test_no_color_means_no_escape_sequences_even_on_a_terminal(
    up: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    up("a.yaml")
    assert asked["console"].is_terminal
    up("a.yaml", "--no-color")
    assert not asked["console"].is_terminal
    assert asked["console"].no_color


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_exit_code_of_local_mode_is_that_of_the_command(
    up: Run, asked: dict[str, Any], code: int
) -> None:
    asked["code"] = code
    assert up("a.yaml") == (code, "")


@pytest.mark.parametrize(
    ("error", "code"), [(RunFailed("x"), 1), (InvalidInput("x"), 2), (NoFittingPlan("x"), 3)]
)
def test_a_failure_of_local_mode_is_said_once(
    up: Run, asked: dict[str, Any], error: Exception, code: int
) -> None:
    asked["error"] = error
    assert up("a.yaml") == (code, "error: x\n")


@pytest.mark.parametrize("port", ["-1", "65536", "http", "80.5"])
def test_a_port_that_is_none_is_refused_before_any_file_is_read(
    up: Run, asked: dict[str, Any], port: str
) -> None:
    code, said = up("a.yaml", "--port", port)
    assert code == 2
    assert "--port" in said
    assert "files" not in asked
