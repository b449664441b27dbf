"""`mambaserve config`: which value holds, and who set it."""

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mamba_cli import main
from mamba_cli.effective_settings import Setting, effective_settings, masked
from mamba_cli.errors import InvalidInput


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    main._collect()
    return main.app


def one(settings: list[Setting], option: str) -> Setting:
    return next(each for each in settings if each.option == option)


def settings_of(app: typer.Typer, *arguments: str, **environment: str) -> list[Setting]:
    return effective_settings(app, "serve", list(arguments), environment, {"page_size": 16, "port": 8000})


def test_a_flag_is_shown_as_a_flag(app: typer.Typer) -> None:
    found = one(settings_of(app, "--page-size", "32"), "--page-size")
    assert (found.value, found.source, found.variable) == (32, "flag", "MAMBASERVE_PAGE_SIZE")


def test_the_environment_is_shown_where_no_flag_is(app: typer.Typer) -> None:
    found = one(settings_of(app, MAMBASERVE_PORT="9000"), "--port")
    assert (found.value, found.source) == ("9000", "environment")
    both = one(settings_of(app, "--port", "7000", MAMBASERVE_PORT="9000"), "--port")
    assert (both.value, both.source) == (7000, "flag")


def test_defaults_of_the_settings_model_fill_what_nobody_set(app: typer.Typer) -> None:
    found = one(settings_of(app), "--page-size")
    assert (found.value, found.source) == (16, "default")


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--pge", "1"], "--pge"), (["--page-size", "many"], "--page-size")]
)
def test_a_wrong_option_is_refused(app: typer.Typer, arguments: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        settings_of(app, *arguments)


def test_an_unknown_command_is_refused_with_the_known_ones(app: typer.Typer) -> None:
    with pytest.raises(InvalidInput, match=r"'nope' is no command; there are: .*plan"):
        effective_settings(app, "nope", [], {}, {})


def test_a_command_that_needs_a_file_is_shown_without_one(app: typer.Typer) -> None:
    found = effective_settings(app, "up", ["--port", "81"], {}, {})
    assert one(found, "--port").source == "flag"
    assert one(found, "--once").value is False


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://u:secret@h/0", "redis://u:***@h/0"),
        ("redis://:secret@h/0", "redis://:***@h/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        (["http://a:b@c"], ["http://a:***@c"]),
        (None, None),
        (True, True),
        (3, 3),
    ],
)
def test_passwords_are_never_shown(value: Any, shown: Any) -> None:
    assert masked(value) == shown


def test_the_command_prints_json_for_programs_and_a_table_for_people(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_HOST", "127.0.0.9")
    done = CliRunner().invoke(app, ["config", "serve", "--page-size", "32", "-o", "json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["page-size"] == {"value": 32, "source": "flag", "variable": "MAMBASERVE_PAGE_SIZE"}
    assert shown["host"]["source"] == "environment"
    table = CliRunner().invoke(app, ["config"])
    assert "--track-interval" in table.stdout
    assert "environment" in table.stdout
