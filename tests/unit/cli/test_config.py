"""`mambaserve config`: which value holds, and who set it."""

import json
from pathlib import Path
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
    return effective_settings(app, "serve", list(arguments), environment)


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


def test_a_file_is_shown_below_flag_and_environment_and_above_defaults(
    app: typer.Typer, tmp_path: Path
) -> None:
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"page_size": 32, "port": 9, "seed": 5, "overlap": False}))
    found = settings_of(app, "--config", str(file), "--seed", "6", MAMBASERVE_PORT="9000")
    assert [(one(found, each).value, one(found, each).source) for each in (
        "--page-size", "--overlap", "--seed", "--port", "--track-interval"
    )] == [(32, "file"), (False, "file"), (6, "flag"), ("9000", "environment"), (256, "default")]  # fmt: skip


def test_a_model_without_its_option_s_name_is_shown_as_a_flag(app: typer.Typer) -> None:
    found = one(settings_of(app, "builtin://x"), "--model")
    assert (found.value, found.source) == ("builtin://x", "flag")


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--pge", "1"], "--pge"), (["--page-size", "many"], "--page-size")]
)
def test_a_wrong_option_is_refused(app: typer.Typer, arguments: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        settings_of(app, *arguments)


def test_an_unknown_command_is_refused_with_the_known_ones(app: typer.Typer) -> None:
    with pytest.raises(InvalidInput, match=r"'nope' is not a command; the commands are .*plan"):
        effective_settings(app, "nope", [], {})


def test_a_command_that_needs_a_file_is_shown_without_one(app: typer.Typer) -> None:
    found = effective_settings(app, "up", ["--port", "81"], {})
    assert one(found, "--port").source == "flag"
    assert one(found, "--once").value is False


def test_a_command_of_a_command_is_named_by_both(app: typer.Typer) -> None:
    found = effective_settings(app, "bench", ["serve", "--requests", "7"], {})
    assert (one(found, "--requests").value, one(found, "--requests").source) == (7, "flag")
    assert one(found, "--concurrency").variable == "MAMBASERVE_BENCH_CONCURRENCY"
    assert one(effective_settings(app, "bench", ["trace"], {}), "--time-scale").value == 1.0


@pytest.mark.parametrize("arguments", [[], ["nope"], ["--requests", "7"]])
def test_a_group_alone_is_answered_with_how_to_name_its_command(
    app: typer.Typer, arguments: list[str]
) -> None:
    with pytest.raises(InvalidInput, match="bench needs one of its sub-commands, as in: config bench serve"):
        effective_settings(app, "bench", arguments, {})


@pytest.mark.parametrize("given", ["flag", "environment"])
def test_an_api_key_is_never_shown(app: typer.Typer, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    arguments = ["--api-key", "s3cret"] if given == "flag" else []
    if given == "environment":
        monkeypatch.setenv("MAMBASERVE_API_KEY", "s3cret")
    for output in ("table", "json", "yaml"):
        done = CliRunner().invoke(app, ["config", "bench", "serve", *arguments, "-o", output])
        assert done.exit_code == 0, done.output
        assert "s3cret" not in done.output
    found = one(effective_settings(app, "bench", ["serve", *arguments], {}), "--api-key")
    assert (found.value, found.source) == ("***", given)


def test_an_api_key_that_nobody_gave_is_shown_as_unset(app: typer.Typer) -> None:
    assert one(effective_settings(app, "bench", ["serve"], {}), "--api-key").value is None


def test_repeated_options_and_switches_are_shown_with_all_their_values(app: typer.Typer) -> None:
    urls = ["--backend", "http://a:1", "--backend", "http://u:p@b:2"]
    found = effective_settings(app, "gateway", urls, {})
    assert one(found, "--backend").value == ["http://a:1", "http://u:***@b:2"]
    off = one(settings_of(app, "--no-overlap"), "--overlap")
    assert (off.value, off.source) == (False, "flag")


def test_a_value_that_looks_like_markup_is_shown_as_it_is(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["config", "serve", "--served-model-name", "[/x]"])
    assert done.exit_code == 0, done.output
    assert "[/x]" in done.stdout


def test_a_wrong_value_in_the_environment_is_refused_by_its_option(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_PORT", "many")
    with pytest.raises(InvalidInput, match="--port"):
        effective_settings(app, "gateway", [], {})


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
