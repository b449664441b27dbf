"""Options of a command made from a settings model: name, type, help, default and variable stand there alone.

A field's attribute docstring is its help, the class that defines it its panel. Made when the command is first
looked at, so `mambaserve --help` does not wait for pydantic. Precedence: flag, environment, file, default.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
import typer.main

from mamba_cli.errors import InvalidInput
from mamba_cli.plain_help import CommandWithPanels

PREFIX = "MAMBASERVE_"
SHOWN_PASSWORD = re.compile(r"^[a-z+]+://[^/@\s]*:[^/@\s]+@|[?&]password=")
"""An address with a password in it."""
CONFIG = "config"
Source = Literal["flag", "environment", "file", "default"]
Run = Callable[[dict[str, Any]], int]
"""Runs the command with the settings that somebody gave; returns the exit code."""


def settings_command(
    where: str,
    run: Run,
    *,
    panels: Mapping[str, tuple[str, ...]] | None = None,
    positional: str = "",
    file: bool = False,
) -> type[CommandWithPanels]:
    """A class of command with one option a field of the model at `where` ("module:Class").

    `panels`: names of fields by panel, for a model that is one class.
    `positional`: a field that may also be given without its option's name; `file`: there is a --config FILE.
    """

    class SettingsCommand(CommandWithPanels):
        """Makes its parameters when they are first asked for."""

        def __init__(self, *args: Any, **more: Any) -> None:
            self._made: Any = None
            super().__init__(*args, **more)

        @property
        def params(self) -> list[Any]:
            if self._made is None:
                module, _, name = where.partition(":")
                model = getattr(importlib.import_module(module), name)
                self._made = _command(model, panels or {}, positional, file)
            params: list[Any] = self._made.params
            return params

        @params.setter
        def params(self, _: list[Any]) -> None:
            """What Typer finds in the signature of the function is nothing."""

        def invoke(self, context: Any) -> Any:
            raise typer.Exit(run(given(context, positional)))

    return SettingsCommand


def given(context: Any, positional: str = "") -> dict[str, Any]:
    """The settings that a flag, the environment or the file gave; defaults are the model's business.

    Raises `InvalidInput` when one is given twice in different ways.
    """
    found = {
        name: value
        for name, value in context.params.items()
        if name != CONFIG and source_of(context, name) != "default"
    }
    _refuse_shown_passwords(context, found)
    bare = found.pop(f"{positional}_argument", None)
    if bare is not None:
        if source_of(context, positional) == "flag" and found[positional] != bare:
            raise InvalidInput(f"--{positional}: is given twice, as {bare} and as {found[positional]}")
        found[positional] = bare
    return found


def _refuse_shown_passwords(context: Any, found: Mapping[str, Any]) -> None:
    """Everyone on the machine can read a command line. Raises `InvalidInput`."""
    for name, value in found.items():
        if isinstance(value, str) and SHOWN_PASSWORD.search(value) and source_of(context, name) == "flag":
            option = f"--{name.replace('_', '-')}"
            raise InvalidInput(
                f"{option}: a password on a command line can be read by everyone on the machine: set "
                f"{PREFIX}{name.upper()} instead, or write the address to a file for {option}-file"
            )


def source_of(context: Any, name: str) -> Source:
    """Who set the option `name`."""
    known: dict[str, Source] = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}
    return known.get(getattr(context.get_parameter_source(name), "name", ""), "default")


def complaint(errors: Any) -> str:
    """What pydantic says of settings, one line an option that is wrong."""
    lines = []
    for item in errors:
        text = "is required" if item["type"] == "missing" else item["msg"].removeprefix("Value error, ")
        text = text.replace("Input should be", "must be")
        if item["loc"]:
            name = str(item["loc"][0])
            text = f"--{name.replace('_', '-')}: {text} ({PREFIX}{name.upper()})"
        lines.append(text)
    return "\n".join(lines)


def _command(model: Any, panels: Mapping[str, tuple[str, ...]], positional: str, file: bool) -> Any:
    """A command that has the options alone."""

    def nothing() -> None:
        """Never called: only its parameters are wanted."""

    placed = {name: panel for panel, names in panels.items() for name in names}
    order = [name for name in dict.fromkeys([*placed, *_in_order(model)]) if name in model.model_fields]
    parameters = [_parameter(model, name, placed.get(name)) for name in order]
    if positional:
        parameters.insert(0, _positional(model, positional))
    if file:
        parameters.append(_config(set(model.model_fields)))
    nothing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
         for name, kind, default in parameters]
    )  # fmt: skip
    nothing.__annotations__ = {name: kind for name, kind, _ in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(nothing)
    return typer.main.get_command(app)


def _in_order(model: Any) -> list[str]:
    """Fields by the groups they are defined in, in the order of the bases."""
    names: list[str] = []
    for group in model.__mro__:
        names += [
            name for name in vars(group).get("__annotations__", {})
            if name in model.model_fields and name not in names and _group(model, name) is group
        ]  # fmt: skip
    return names


def _group(model: Any, name: str) -> Any:
    """The class that defines `name` first: what a subclass says anew stays in its group."""
    return next(each for each in reversed(model.__mro__) if name in vars(each).get("__annotations__", {}))


def _title(group: Any) -> str:
    """The first sentence of what a class says of itself, however its lines are broken."""
    return " ".join((group.__doc__ or "Options").split()).partition(". ")[0].rstrip(".")


def _parameter(model: Any, name: str, panel: str | None) -> tuple[str, Any, Any]:
    field = model.model_fields[name]
    kind, default = _kind(field.annotation), field.default
    declared = f"--{name.replace('_', '-')}"
    if kind is bool:
        declared += f"/--no-{declared[2:]}"
    several = get_origin(field.annotation) is tuple
    if field.is_required() or default in (None, ()):
        default = None
    elif "ByteSize" in str(field.annotation):
        from mamba_settings.byte_size import exact_size

        default = exact_size(default)
    option = typer.Option(
        declared,
        help=" ".join(str(field.description).split()),
        envvar=f"{PREFIX}{name.upper()}",
        show_default=default is not None,
        rich_help_panel=panel or _title(_group(model, name)),
        metavar="BYTES" if "ByteSize" in str(field.annotation) else None,
    )
    if several:
        kind = list[str] | None
    elif default is None:
        kind = kind | None
    return name, Annotated[kind, option], default


def _kind(annotation: Any) -> Any:
    """The type of an option: bounds and spellings of sizes are the model's to check."""
    choices = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return annotation
    if choices and get_origin(annotation) is not tuple:
        return _kind(choices[0])
    return annotation if annotation in (bool, int, float) else str


def _positional(model: Any, name: str) -> tuple[str, Any, Any]:
    said = f"The same as --{name}, without the option's name."
    argument = typer.Argument(metavar=name.upper(), help=said, show_default=False)
    return f"{name}_argument", Annotated[str | None, argument], None


def _config(known: set[str]) -> tuple[str, Any, Any]:
    def load(context: typer.Context, path: str | None) -> str | None:
        if path is not None:
            # Below the environment, above the defaults.
            context.default_map = {**(context.default_map or {}), **read_document(Path(path), known)}
        return path

    option = typer.Option(
        "--config",
        help="JSON file with settings by their names, such as page_size; flags and environment win over it.",
        envvar=f"{PREFIX}CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=load,
        show_default=False,
    )
    return CONFIG, Annotated[str | None, option], None


def read_document(path: Path, known: set[str]) -> dict[str, Any]:
    """The settings document at `path`. Raises `InvalidInput` that names the file and what is wrong in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"--config: {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"--config: {path}: is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"--config: {path}: must hold a JSON object")
    if unknown := sorted(set(document) - known):
        raise InvalidInput(
            f"--config: {path}: unknown settings {', '.join(unknown)}; a newer version may have written it"
        )
    return {name: value for name, value in document.items() if value is not None}
