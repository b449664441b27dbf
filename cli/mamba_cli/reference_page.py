"""`reference_page`: the reference page of the command line, generated from the commands by `make docs`.

Its texts are those of `--help`, from the settings models and the commands.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main

HEAD = """# Command line

<!-- Written by `make docs` from the commands of mamba_cli; edit those. -->

`mambaserve COMMAND --help` shows the same texts. Every option has an environment variable, which the option
overrides. `mambaserve config COMMAND` shows the settings that a command would run with, and their sources.
With `--output json` or `yaml`, standard output holds the document alone.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | a failure while the command ran |
| 2 | wrong usage or invalid input; the message names the option or the field |
| 3 | the plan does not fit the memory; the message has the numbers |
"""


def reference_page() -> str:
    """Return the Markdown page: one section per command, and a table of all environment variables."""
    from mamba_cli.main import application

    root: Any = typer.main.get_command(application())
    lines, variables = [HEAD], dict[str, list[str]]()
    for name, command in _commands(root):
        lines += [*_section(name, command)]
        for parameter in command.params:
            if parameter.envvar:
                word = _name(parameter) if parameter.param_type_name == "option" else _metavar(parameter)
                variables.setdefault(str(parameter.envvar), []).append(f"`mambaserve {name} {word}`")
    lines += ["## Environment variables", "", "| variable | the same as |", "| --- | --- |"]
    lines += [f"| `{variable}` | {', '.join(of)} |" for variable, of in sorted(variables.items())]
    return "\n".join([*lines, ""])


def _commands(root: Any) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(root.commands.items()):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {child_name}", child) for child_name, child in sorted(inner.items()))


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    synopsis = " ".join(_metavar(argument) for argument in arguments)
    yield from (f"## {name}", "", _text(command.help), "", "```sh")
    yield from (" ".join(filter(None, (f"mambaserve {name}", "[OPTIONS]", synopsis))), "```", "")
    if arguments:
        yield from ("| argument | variable | default | meaning |", "| --- | --- | --- | --- |")
        yield from (_row(_metavar(argument), argument) for argument in arguments)
        yield ""
    if options := list(_options(command)):
        yield from ("| option | variable | default | meaning |", "| --- | --- | --- | --- |")
        yield from (_row(", ".join([*option.opts, *option.secondary_opts]), option) for option in options)
        yield ""


def _options(command: Any) -> Iterator[Any]:
    return (
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    )


def _name(option: Any) -> str:
    return str(max(option.opts, key=len))


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _row(name: str, parameter: Any) -> str:
    variable = f"`{parameter.envvar}`" if parameter.envvar else ""
    return f"| `{name}` | {variable} | {_default(parameter)} | {_text(parameter.help)} |".replace("  ", " ")


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == [] or callable(value) or "MISSING" in repr(value) or "UNSET" in repr(value):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _text(help_text: str | None) -> str:
    return " ".join((help_text or "").split()).replace("|", "\\|")
