"""The recipe for a cache option: what it says comes by itself does so for each option that there is."""

import re
from pathlib import Path

import pytest
from typer import Typer
from typer.main import get_command

from mamba_api.v1alpha1 import StateCache
from mamba_cli.commands import serve
from mamba_planner.engine_settings import EngineSettings

ROOT = Path(__file__).parents[3]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding a cache option")[2].partition("\n## ")[0]
PLACES = re.findall(r"^\d\. `([^`]+)`: \S", RECIPE, re.MULTILINE)
READERS = ("server/mamba_server/engine/boot.py", "operator/mamba_planner/constraints.py")
"""Where settings are read for the cache, and for the plan that the cache is made from."""


def test_the_recipe_names_at_most_three_places_all_of_which_exist() -> None:
    assert PLACES[1] == READERS[0]
    assert len(PLACES) <= 3
    assert [place for place in PLACES if not (ROOT / place).exists()] == []


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Names of the options of `mambaserve serve`."""
    app = Typer()
    app.command(cls=serve.CLASS)(serve.command)
    return {option for parameter in get_command(app).params for option in parameter.opts}


@pytest.mark.parametrize("name", StateCache.model_fields)
def test_a_field_of_the_cache_is_a_setting_and_an_option_and_is_read(name: str, options: set[str]) -> None:
    assert name in EngineSettings.model_fields
    assert f"--{name.replace('_', '-')}" in options
    assert any(f"settings.{name}" in (ROOT / reader).read_text() for reader in READERS)


@pytest.mark.parametrize("name", StateCache.model_fields)
def test_no_file_between_the_field_and_its_reader_names_it(name: str) -> None:
    between = ("operator/mamba_planner/spec_settings.py", "server/mamba_cli/settings_options.py")
    if name != "state_dtype":  # its `Auto` is `auto` on the command line
        assert not any(re.search(rf"\b{name}\b", (ROOT / path).read_text()) for path in between)
