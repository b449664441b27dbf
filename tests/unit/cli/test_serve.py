"""`mambaserve serve`: its options are exactly the settings of an engine, and reach them."""

import inspect
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from mamba_cli.commands import serve
from mamba_cli.errors import CliError, InvalidInput
from mamba_planner.engine_settings import EngineSettings
from mamba_server.api import server
from mamba_server.api.errors import EngineStartFailed


def options() -> dict[str, Any]:
    return dict(inspect.signature(serve.command).parameters)


def test_every_setting_is_an_option_and_the_other_way_round() -> None:
    assert set(options()) == set(EngineSettings.model_fields)


@pytest.mark.parametrize("name", sorted(EngineSettings.model_fields))
def test_an_option_names_its_variable_in_the_help(name: str) -> None:
    _, option = get_args(options()[name].annotation)
    assert option.help.endswith(f"[env: MAMBASERVE_{name.upper()}]")
    assert str(option.default).partition("/")[0] == f"--{name.replace('_', '-')}"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[EngineSettings]:
    seen: list[EngineSettings] = []

    def fake(settings: EngineSettings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(server, "serve", fake)
    return seen


def test_given_values_win_over_the_environment_which_wins_over_defaults(
    served: list[EngineSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_PORT", "9001")
    monkeypatch.setenv("MAMBASERVE_PAGE_SIZE", "32")
    assert serve.run({"model": "m", "port": 9002}) == 0
    assert (served[0].port, served[0].page_size, served[0].track_interval) == (9002, 32, 256)


def test_the_model_may_come_from_the_environment(
    served: list[EngineSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_MODEL", "builtin://x")
    assert serve.run({}) == 0
    assert served[0].model == "builtin://x"


@pytest.mark.parametrize(
    ("text", "size"), [("2Gi", 2 << 30), ("512Mi", 512 << 20), ("1000", 1000), ("2G", 2 * 10**9)]
)
def test_sizes_are_read_as_kubernetes_writes_them(served: list[EngineSettings], text: str, size: int) -> None:
    serve.run({"model": "m", "arena_bytes": text})
    assert served[0].arena_bytes == size


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({}, "--model"),
        ({"model": "m", "port": 70000}, "--port"),
        ({"model": "m", "utilization": 0}, "--utilization"),
        ({"model": "m", "dtype": "int8"}, "--dtype"),
        ({"model": "m", "max_waiting_requests": 0}, "--max-waiting-requests"),
    ],
)
def test_a_wrong_value_names_its_option_and_variable(given: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        serve.run(given)
    assert option in str(caught.value)
    assert f"MAMBASERVE_{option[2:].replace('-', '_').upper()}" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_failure_to_start_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(_: EngineSettings) -> int:
        raise EngineStartFailed("needs 12 GiB", code)

    monkeypatch.setattr(server, "serve", fail)
    with pytest.raises(CliError, match="needs 12 GiB") as caught:
        serve.run({"model": "m"})
    assert caught.value.exit_code == code


def test_switches_have_a_no_form() -> None:
    import typer

    app = typer.Typer()
    app.command()(serve.command)
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "--no-prefix-caching" in text
    assert "--no-overlap" in text
