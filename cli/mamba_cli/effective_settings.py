"""Which value each option of a command has, and who set it: a flag, the environment, a file, or nobody.

`mambaserve config` shows it. Parses, never runs the command; passwords in URLs are masked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer.main
from typer import Typer

from mamba_cli.errors import InvalidInput
from mamba_cli.settings_options import Source, source_of

HIDDEN = "***"
_SECRET = ("api_key",)
_PASSWORD = re.compile(r"(?<=://)([^/@\s]*):([^/@\s]+)@")


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `value` None = unset, so the command decides."""

    option: str
    value: Any
    source: Source
    variable: str


def effective_settings(
    app: Typer, name: str, arguments: list[str], environment: Mapping[str, str]
) -> list[Setting]:
    """Settings of `name ARGUMENTS…`.

    The first argument of a command that has commands of its own, such as bench, is one of them.

    Raises `InvalidInput` for an unknown command or option.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands.get(name)
    if command is None:
        raise InvalidInput(f"{name!r} is no command; there are: {', '.join(group.commands)}")
    if inner := getattr(command, "commands", None):
        chosen = arguments[0] if arguments else ""
        if chosen not in inner:
            raise InvalidInput(f"{name} needs one of its commands, as in: config {name} {next(iter(inner))}")
        command, name, arguments = inner[chosen], f"{name} {chosen}", arguments[1:]
    context = _parse(command, name, arguments)
    found = []
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name == "help":
            continue
        value, kind = context.params.get(parameter.name), source_of(context, parameter.name)
        variable = _variable(parameter)
        if kind in ("default", "file") and variable in environment:
            kind, value = "environment", environment[variable]
        if (bare := context.params.get(f"{parameter.name}_argument")) is not None:
            value, kind = bare, "flag"
        shown = HIDDEN if value and parameter.name in _SECRET else masked(value)
        found.append(Setting(_longest(parameter.opts), shown, kind, variable))
    return found


def _parse(command: Any, name: str, arguments: list[str]) -> Any:
    try:
        return command.make_context(name, list(arguments))
    except Exception as error:
        if type(error).__name__ == "MissingParameter":
            # Only the options matter here: a file or model to work on may be absent.
            return command.make_context(name, list(arguments), resilient_parsing=True)
        if hasattr(error, "format_message"):
            raise InvalidInput(f"{name}: {error.format_message()}") from error
        raise


def masked(value: Any) -> Any:
    """The value as it may be shown: plain data, without passwords."""
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", value)
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked(str(getattr(value, "value", value)))


def _variable(parameter: Any) -> str:
    declared = parameter.envvar
    if isinstance(declared, list | tuple):
        declared = declared[0] if declared else None
    return str(declared or f"MAMBASERVE_{parameter.name.upper()}")


def _longest(names: list[str]) -> str:
    return max(names, key=len)
