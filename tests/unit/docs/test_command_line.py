"""The reference of the command line: nothing that a command takes is missing from it."""

from pathlib import Path

import pytest

from mamba_cli.effective_settings import effective_settings
from mamba_cli.main import application

PAGE = (Path(__file__).parents[3] / "docs/reference/command-line.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])


@pytest.mark.parametrize("command", [name for name in SECTIONS if name != "Environment variables"])
def test_every_option_of_a_command_stands_in_its_section_and_in_the_table_of_variables(command: str) -> None:
    name, *inner = command.split()
    settings = effective_settings(application(), name, inner, {})
    assert settings
    for each in settings:
        (row,) = [line for line in SECTIONS[command].splitlines() if f"`{each.option}`" in line
                  or f"`{each.option}, " in line or f", {each.option}`" in line]  # fmt: skip
        assert f"`{each.variable}`" in row
        (found,) = [line for line in SECTIONS["Environment variables"].splitlines()
                    if line.startswith(f"| `{each.variable}` ")]  # fmt: skip
        assert f"`mambaserve {command} {each.option}`" in found


def test_every_command_has_a_section() -> None:
    assert {"up", "serve", "gateway", "operator", "plan", "bench serve", "status", "chat"} <= set(SECTIONS)
