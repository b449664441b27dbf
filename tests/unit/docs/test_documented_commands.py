"""Commands on the pages: each is one that there is, with options, files and targets that there are."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from documented_commands import DocumentedCommand, commands_of, documented_commands
from mamba_api.v1alpha1.schema import custom_resource_definition
from mamba_cli.main import application
from parsed_yaml import load_yaml

ROOT = Path(__file__).parents[3]
COMMANDS = documented_commands()
USAGE_ERROR: Any = typer.BadParameter.__base__
"""Base of the errors of a command line, of the click that typer brings."""


def named(*programs: str) -> list[DocumentedCommand]:
    return [command for command in COMMANDS if command.program in programs]


@pytest.fixture(scope="module")
def cli() -> Any:
    return typer.main.get_command(application())


def parse(cli: Any, words: list[str]) -> None:
    """Parse a command line as the program does, without running it. Raises USAGE_ERROR."""
    while hasattr(cli, "commands"):
        name, *words = words
        if name not in cli.commands:
            raise typer.BadParameter(f"no command {name!r}")
        cli = cli.commands[name]
    cli.make_context("mambaserve", words)


def test_the_command_line_takes_every_documented_command(cli: Any) -> None:
    commands = named("mambaserve")
    assert len(commands) > 60
    refused = []
    for command in commands:
        try:
            parse(cli, list(command.words[1:]))
        except USAGE_ERROR as error:
            refused.append(f"{command}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    "line", ["mambaserve plam FILE", "mambaserve plan FILE --card H100", "mambaserve up"]
)
def test_a_command_that_there_is_not_would_be_noticed(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("documented_commands.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"1. Try it:\n\n   ```sh\n   cat FILE |\n     {line}   # a word\n   ```\n")
    _, command = commands_of(page)
    with pytest.raises(USAGE_ERROR):
        parse(cli, list(command.words[1:]))


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for command in named("make") for word in command.words[1:] if "=" not in word}
    assert len(asked) > 5
    assert asked - targets == set()


def test_documented_python_modules_exist() -> None:
    modules = {
        words[at + 1]
        for command in named("python", "python3")
        for words in [command.words]
        for at in [words.index("-m")]
    }
    assert "benchmarks.gpu" in modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_files_of_the_project_in_commands_exist() -> None:
    pattern = re.compile(r"(?:examples|charts|manifests|images|tests|scripts)/[\w./-]+")
    paths = {word for command in COMMANDS for word in command.words if pattern.fullmatch(word)}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_values_that_helm_is_given_are_values_of_the_chart() -> None:
    values = load_yaml((ROOT / "charts/mambaserve/values.yaml").read_text())
    unknown = []
    given = 0
    for command in named("helm"):
        for option, setting in zip(command.words, command.words[1:], strict=False):
            if option != "--set":
                continue
            given += 1
            at: Any = values
            for name in setting.partition("=")[0].split("."):
                at = at.get(name, ...) if isinstance(at, dict) else ...
            if at is ...:
                unknown.append(str(command))
    assert given > 3
    assert unknown == []


def leads_somewhere(schema: Any, path: str) -> bool:
    """Return whether the dots and brackets of a JSONPath are fields and lists of the schema."""
    at = schema
    for name in re.findall(r"\[[^]]*\]|\w+", path):
        if name.startswith("["):
            at = at.get("items")
        elif "properties" in at:
            at = at["properties"].get(name)
        else:
            return bool(at.get("x-kubernetes-preserve-unknown-fields"))
        if at is None:
            return False
    return True


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        (".status.pools[*].scaling.reason", True),
        ('.status.conditions[?(@.type=="Ready")].message', True),
        (".status.pool[*]", False),
        (".status.pools[*].ready", False),
    ],
)
def test_a_path_that_leads_nowhere_would_be_noticed(path: str, leads: bool) -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert leads_somewhere(schema, path) is leads


def test_paths_into_a_deployment_lead_to_fields() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    wrong, paths = [], 0
    for command in named("kubectl"):
        templates = [word for word in command.words if re.match(r"(--for=)?jsonpath=", word)]
        if not any(word.partition("/")[0] == "mdep" for word in command.words) or not templates:
            continue
        within = ""
        for step in re.findall(r"\{([^}\"]+(?:\"[^\"]*\"[^}\"]*)*)\}", templates[0]):
            within = step.removeprefix("range ") if step.startswith("range ") else within
            path = within if step.startswith(("range ", "end")) else f"{within}{step}"
            paths += 1
            if not leads_somewhere(schema, path):
                wrong.append(str(command))
    assert paths > 15
    assert wrong == []
