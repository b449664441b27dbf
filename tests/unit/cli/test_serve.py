"""`mambaserve serve`: its options are exactly the settings of an engine, and reach them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from mamba_cli import main
from mamba_cli.commands import serve
from mamba_cli.errors import CliError, InvalidInput
from mamba_gateway.settings import GatewaySettings
from mamba_server.api import server
from mamba_server.api.requests.errors import EngineStartFailed
from mamba_server.model.checkpoint.source import resolve
from mamba_settings.engine_settings import EngineSettings
from prefork import FORK_SERVER


def options(name: str) -> dict[str, Any]:
    main._collect()
    group: Any = typer.main.get_command(main.app)
    return {each.name: each for each in group.commands[name].params if each.param_type_name == "option"}


def model_of(name: str) -> Any:
    return {"serve": EngineSettings, "gateway": GatewaySettings}[name]


MODEL = "builtin://tiny-recall"
BOTH = pytest.mark.parametrize("name", ["serve", "gateway"])


@BOTH
def test_every_setting_is_an_option_and_the_other_way_round(name: str) -> None:
    more = {"config"} if name == "serve" else set()
    assert set(options(name)) - {"help"} == set(model_of(name).model_fields) | more


@BOTH
def test_an_option_says_what_its_setting_says_and_names_its_variable(name: str) -> None:
    given = options(name)
    for field, info in model_of(name).model_fields.items():
        option = given[field]
        assert option.help == " ".join(info.description.split())
        assert option.envvar == f"MAMBASERVE_{field.upper()}"
        assert option.opts[0] == f"--{field.replace('_', '-')}"
        shown = option.default
        assert shown == info.default or not shown or option.metavar == "BYTES"


@BOTH
def test_options_are_shown_in_groups(name: str) -> None:
    panels = [each.rich_help_panel for each in options(name).values() if each.name not in ("help", "config")]
    assert None not in panels
    assert 4 <= len(set(panels)) < len(panels) / 2


def test_the_help_of_serve_begins_with_what_most_people_set() -> None:
    help_text = FORK_SERVER.run("-m", "mamba_cli", "serve", "--help", env={"COLUMNS": "80"}).stdout
    groups = [line for line in help_text.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert groups[:2] == ["Options:", "Common:"]
    common = help_text.partition("Common:")[2].partition(f"\n{groups[2]}")[0]
    for option in ("--model", "--port", "--api-key-file", "--max-model-len", "--quantization"):
        assert f"\n  {option} " in common


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[EngineSettings]:
    seen: list[EngineSettings] = []

    def fake(settings: EngineSettings, **_: Any) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(server, "serve", fake)
    return seen


def ended(*arguments: str) -> int:
    """Return the exit code of `mambaserve serve ARGUMENTS…`. Raises CliError."""
    main._collect()
    group: Any = typer.main.get_command(main.app)
    try:
        group.commands["serve"].main(list(arguments), standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_given_values_win_over_the_environment_which_wins_over_defaults(
    served: list[EngineSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_PORT", "9001")
    monkeypatch.setenv("MAMBASERVE_PAGE_SIZE", "32")
    assert ended("--model", MODEL, "--port", "9002") == 0
    assert (served[0].port, served[0].page_size, served[0].track_interval) == (9002, 32, 256)


def test_the_model_may_come_from_the_environment(
    served: list[EngineSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_MODEL", MODEL)
    assert ended() == 0
    assert served[0].model == MODEL


def test_a_model_needs_no_name_of_an_option(served: list[EngineSettings]) -> None:
    assert ended(MODEL, "--seed", "3") == 0
    assert (served[0].model, served[0].seed) == (MODEL, 3)
    with pytest.raises(InvalidInput, match="--model: is given twice, as a and as b"):
        ended("a", "--model", "b")


def test_a_file_stands_below_the_environment_and_above_the_defaults(
    served: list[EngineSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"model": MODEL, "page_size": 32, "seed": 5, "port": 1, "overlap": False}))
    monkeypatch.setenv("MAMBASERVE_SEED", "6")
    assert ended("--config", str(file), "--port", "2") == 0
    made = served[0]
    assert (made.model, made.page_size, made.seed, made.port, made.overlap) == (MODEL, 32, 6, 2, False)
    assert made.track_interval == 256


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model": "m", "pagesize": 1}', "unknown settings pagesize"),
        ("[]", "must hold a JSON object"),
        ("{", "is not valid JSON"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    served: list[EngineSettings], tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "engine.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        ended("--config", str(file))
    assert str(caught.value).startswith(f"--config: {file}: ")
    assert served == []


def test_settings_that_do_not_go_together_are_refused_before_an_engine_is_started(
    served: list[EngineSettings],
) -> None:
    with pytest.raises(InvalidInput, match="page size 7, for example 252"):
        ended("--page-size", "7", MODEL)
    assert served == []
    assert ended("--page-size", "7", "--track-interval", "252", MODEL) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("2Gi", 2 << 30), ("512Mi", 512 << 20), ("1000", 1000), ("2G", 2 * 10**9)]
)
def test_sizes_are_read_as_kubernetes_writes_them(served: list[EngineSettings], text: str, size: int) -> None:
    serve.run({"model": MODEL, "arena_bytes": text})
    assert served[0].arena_bytes == size


@pytest.mark.parametrize(
    ("given", "option"),
    [
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


@pytest.mark.parametrize("given", [{}, {"model": ""}])
def test_without_a_model_it_says_what_may_be_one(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"no model is named: give a directory, .*builtin://") as caught:
        serve.run(given)
    assert resolve(re.findall(r"builtin://[\w-]+", str(caught.value))[0]).is_dir()


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_failure_to_start_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(_: EngineSettings, **__: Any) -> int:
        raise EngineStartFailed("needs 12 GiB", code)

    monkeypatch.setattr(server, "serve", fail)
    with pytest.raises(CliError, match="needs 12 GiB") as caught:
        serve.run({"model": MODEL})
    assert caught.value.exit_code == code


@BOTH
def test_switches_have_a_no_form(name: str) -> None:
    for field, info in model_of(name).model_fields.items():
        if info.annotation is bool:
            assert options(name)[field].secondary_opts == [f"--no-{field.replace('_', '-')}"]
    assert options("serve")["prefix_caching"].secondary_opts == ["--no-prefix-caching"]


@pytest.mark.parametrize(
    "model",
    ["absent", "./absent", "builtin://absent", "file:///absent/model", "ftp://absent", "pvc://absent/a"],
)
def test_a_model_that_is_not_there_is_said_before_a_server_is_loaded(
    model: str, served: list[EngineSettings]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        serve.run({"model": model})
    assert str(caught.value).startswith(model)
    assert caught.value.exit_code == 2
    assert served == []


def test_a_model_of_the_hub_is_looked_for_by_the_server_which_tells_how_far_the_download_is(
    served: list[EngineSettings],
) -> None:
    assert serve.run({"model": "hf://owner/name"}) == 0
    assert served[0].model == "hf://owner/name"


def test_neither_a_server_nor_a_terminal_is_loaded_for_a_model_that_is_not_there() -> None:
    code = (
        "import sys; from mamba_cli.commands import serve\n"
        "try: serve.run({'model': 'absent'})\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print([n for n in ('torch', 'mamba_server.api.server', 'rich', 'aiohttp') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["InvalidInput", "[]"]
