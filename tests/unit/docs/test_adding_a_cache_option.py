"""The recipe for a cache option: what it says comes by itself does so for each option that there is."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from typer import Typer
from typer.main import get_command

from mamba_api.v1alpha1 import StateCache
from mamba_cli import settings_options
from mamba_cli.commands import serve
from mamba_planner import constraints
from mamba_settings import spec_settings
from mamba_settings.engine_settings import EngineSettings

ROOT = Path(__file__).parents[3]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding a cache option")[2].partition("\n## ")[0]
PLACES = re.findall(r"^\d\. `([^`]+)`: \S", RECIPE, re.MULTILINE)
READERS = (ROOT / PLACES[1], Path(constraints.__file__))
"""Where settings are read for the cache, and for the plan that the cache is made from."""
BETWEEN = (Path(spec_settings.__file__), Path(settings_options.__file__))
"""Modules that pass on all fields of the cache."""


@cache
def identifiers(path: Path) -> frozenset[str]:
    """Return the attributes, names and short strings of a module."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(attributes(path) | strings | {node.id for node in nodes if isinstance(node, ast.Name)})


@cache
def attributes(path: Path) -> frozenset[str]:
    """Return the names of all attributes that a module reads."""
    return frozenset(
        node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    )


def test_the_recipe_names_at_most_three_places_all_of_which_exist() -> None:
    assert len(PLACES) <= 3
    assert [place for place in PLACES if not (ROOT / place).exists()] == []


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Return the names of the options of `mambaserve serve`."""
    app = Typer()
    app.command(cls=serve.CLASS)(serve.command)
    return {option for parameter in get_command(app).params for option in parameter.opts}


@pytest.mark.parametrize("name", StateCache.model_fields)
def test_a_field_of_the_cache_is_a_setting_and_an_option_and_is_read(name: str, options: set[str]) -> None:
    assert name in EngineSettings.model_fields
    assert f"--{name.replace('_', '-')}" in options
    assert any(name in attributes(reader) for reader in READERS)


@pytest.mark.parametrize("name", StateCache.model_fields)
def test_no_file_between_the_field_and_its_reader_names_it(name: str) -> None:
    if name != "state_dtype":  # its `Auto` is `auto` on the command line
        assert not any(name in identifiers(path) for path in BETWEEN)
