"""`effective_settings`: the value and the source of each option of a command, for `mambaserve config`.

A source is a flag, the environment, a file or the default. The command is parsed and never run; passwords in
URLs are masked.
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
    """One option with its value and source. `value` None = unset, so the command decides."""

    option: str
    value: Any
    source: Source
    variable: str


def effective_settings(
    app: Typer, name: str, arguments: list[str], environment: Mapping[str, str]
) -> list[Setting]:
    """Return the settings of `name ARGUMENTS…`.

    For a command with sub-commands, such as `bench`, the first argument is the name of the sub-command.

    Raises `InvalidInput` for an unknown command or option.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands.get(name)
    if command is None:
        raise InvalidInput(f"{name!r} is not a command; the commands are {', '.join(group.commands)}")
    if inner := getattr(command, "commands", None):
        chosen = arguments[0] if arguments else ""
        if chosen not in inner:
            raise InvalidInput(
                f"{name} needs one of its sub-commands, as in: config {name} {next(iter(inner))}"
            )
        command, name, arguments = inner[chosen], f"{name} {chosen}", arguments[1:]
    context = _parse(command, name, arguments)
    settings = []
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name == "help":
            continue
        value, source = context.params.get(parameter.name), source_of(context, parameter.name)
        variable = _variable(parameter)
        if source in ("default", "file") and variable in environment:
            source, value = "environment", environment[variable]
        if (positional := context.params.get(f"{parameter.name}_argument")) is not None:
            value, source = positional, "flag"
        visible = HIDDEN if value and parameter.name in _SECRET else masked(value)
        settings.append(Setting(_longest(parameter.opts), visible, source, variable))
    return settings


def known_variables(app: Typer) -> set[str]:
    """Return the names of all environment variables that commands and kernels read."""
    from mamba_kernels.kernel_choice import VARIABLE

    names = {VARIABLE}
    commands: list[Any] = [typer.main.get_command(app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        names |= {_variable(parameter) for parameter in command.params if parameter.name != "help"}
    return names


def _parse(command: Any, name: str, arguments: list[str]) -> Any:
    try:
        return command.make_context(name, list(arguments))
    except Exception as error:
        if type(error).__name__ == "MissingParameter":
            # Only the options matter here, so required arguments may be absent.
            return command.make_context(name, list(arguments), resilient_parsing=True)
        if hasattr(error, "format_message"):
            raise InvalidInput(f"{name}: {error.format_message()}") from error
        raise


def masked(value: Any) -> Any:
    """Return the value as plain data without passwords."""
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", value)
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
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
