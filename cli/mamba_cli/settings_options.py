"""`settings_command`: a command whose options are the fields of a settings model.

The model alone defines name, type, help, default and variable: the attribute docstring of a field is the help
of its option, and the class that defines the field gives the panel. Options are built at their first use, so
that `mambaserve --help` does not import pydantic. Precedence: flag, environment, file, default.
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
URL_PASSWORD = re.compile(r"^[a-z+]+://[^/@\s]*:[^/@\s]+@|[?&]password=")
"""Pattern of a URL that contains a password."""
CONFIG = "config"
Source = Literal["flag", "environment", "file", "default"]
Run = Callable[[dict[str, Any]], int]
"""Function that runs the command with the settings that are not defaults, and returns the exit code."""


def settings_command(
    where: str,
    run: Run,
    *,
    panels: Mapping[str, tuple[str, ...]] | None = None,
    positional: str = "",
    file: bool = False,
) -> type[CommandWithPanels]:
    """Return a command class with one option for each field of a settings model.

    Args:
        where: the model, as "module:Class".
        run: function that runs the command.
        panels: name of a panel of the help -> names of its fields, which come first; other fields have the
            panel of their class.
        positional: field that may also be given as an argument.
        file: whether the command has the option --config FILE.
    """

    class SettingsCommand(CommandWithPanels):
        """A command that builds its parameters at their first use."""

        def __init__(self, *args: Any, **more: Any) -> None:
            self._built: Any = None
            super().__init__(*args, **more)

        @property
        def params(self) -> list[Any]:
            if self._built is None:
                module, _, name = where.partition(":")
                model = getattr(importlib.import_module(module), name)
                self._built = _command(model, panels or {}, positional, file)
            params: list[Any] = self._built.params
            return params

        @params.setter
        def params(self, _: list[Any]) -> None:
            """Ignore the parameters that Typer reads from the signature of the function."""

        def invoke(self, context: Any) -> Any:
            raise typer.Exit(run(chosen_settings(context, positional)))

    return SettingsCommand


def chosen_settings(context: Any, positional: str = "") -> dict[str, Any]:
    """Return the settings from flags, environment and file, without defaults, which the model adds.

    Raises `InvalidInput` when the positional argument and its option differ.
    """
    settings = {
        name: value
        for name, value in context.params.items()
        if name != CONFIG and source_of(context, name) != "default"
    }
    _refuse_url_passwords(context, settings)
    argument = settings.pop(f"{positional}_argument", None)
    if argument is not None:
        if source_of(context, positional) == "flag" and settings[positional] != argument:
            raise InvalidInput(f"--{positional}: is given twice, as {argument} and as {settings[positional]}")
        settings[positional] = argument
    return settings


def _refuse_url_passwords(context: Any, settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for a password on the command line, which every user of the machine can read."""
    for name, value in settings.items():
        if isinstance(value, str) and URL_PASSWORD.search(value) and source_of(context, name) == "flag":
            option = f"--{name.replace('_', '-')}"
            raise InvalidInput(
                f"{option}: every user of the machine can read a password on the command line: set "
                f"{PREFIX}{name.upper()} instead, or write the address to a file for {option}-file"
            )


def source_of(context: Any, name: str) -> Source:
    """Return where the value of the option `name` comes from, such as the command line or a variable."""
    sources: dict[str, Source] = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}
    return sources.get(getattr(context.get_parameter_source(name), "name", ""), "default")


def complaint(errors: Any) -> str:
    """Return the validation errors of settings as text, with one line for each wrong option."""
    lines = []
    for item in errors:
        text = "is required" if item["type"] == "missing" else item["msg"].removeprefix("Value error, ")
        text = text.replace("Input should be", "must be")
        if item["loc"]:
            name = str(item["loc"][0])
            inside = ".".join(map(str, item["loc"][1:]))
            text = f"{inside}: {text}" if inside else text
            text = f"--{name.replace('_', '-')}: {text} ({PREFIX}{name.upper()})"
        lines.append(text)
    return "\n".join(lines)


def _command(model: Any, panels: Mapping[str, tuple[str, ...]], positional: str, file: bool) -> Any:
    """Return a command with the options of the model, which is never run."""

    def nothing() -> None:
        """Carry the signature from which Typer builds the parameters; never called."""

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
    """Return the fields by the classes that define them, in the order of the bases."""
    names: list[str] = []
    for group in model.__mro__:
        names += [
            name for name in vars(group).get("__annotations__", {})
            if name in model.model_fields and name not in names and _group(model, name) is group
        ]  # fmt: skip
    return names


def _group(model: Any, name: str) -> Any:
    """Return the class whose panel shows the option `name`: the first class that defines the field.

    A field that a subclass redefines stays in its panel.
    """
    return next(base for base in reversed(model.__mro__) if name in vars(base).get("__annotations__", {}))


def _title(group: Any) -> str:
    """Return the first sentence of the docstring of a class, as one line."""
    return " ".join((group.__doc__ or "Options").split()).partition(". ")[0].rstrip(".")


def _parameter(model: Any, name: str, panel: str | None) -> tuple[str, Any, Any]:
    field = model.model_fields[name]
    kind, default = _kind(field.annotation), field.default
    declared = f"--{name.replace('_', '-')}"
    if kind is bool:
        declared += f"/--no-{declared[2:]}"
    items = get_args(field.annotation)[0] if get_origin(field.annotation) is tuple else None
    several = items is str
    # A computed default, or one of several objects, is in the help text; the option of such objects is JSON.
    if field.is_required() or field.default_factory or default in (None, ()) or (items and not several):
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
    """Return the type of an option; the model checks bounds and spellings of sizes."""
    choices = [choice for choice in get_args(annotation) if choice is not type(None)]
    if get_origin(annotation) is Literal:
        return annotation
    if choices and get_origin(annotation) is not tuple:
        return _kind(choices[0])
    return annotation if annotation in (bool, int, float) else str


def _positional(model: Any, name: str) -> tuple[str, Any, Any]:
    help_text = f"The same as --{name}."
    argument = typer.Argument(metavar=name.upper(), help=help_text, show_default=False)
    return f"{name}_argument", Annotated[str | None, argument], None


def _config(names: set[str]) -> tuple[str, Any, Any]:
    def load(context: typer.Context, path: str | None) -> str | None:
        if path is not None:
            # The default map ranks below the environment and above the defaults.
            context.default_map = {**(context.default_map or {}), **read_document(Path(path), names)}
        return path

    option = typer.Option(
        "--config",
        help="JSON file of settings by name, such as page_size; flags and environment override it.",
        envvar=f"{PREFIX}CONFIG",
        metavar="FILE",
        is_eager=True,
        callback=load,
        show_default=False,
    )
    return CONFIG, Annotated[str | None, option], None


def read_document(path: Path, names: set[str]) -> dict[str, Any]:
    """Read the settings document at `path`, whose keys must be in `names`.

    Raises `InvalidInput` that names the file and its problem.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"--config: {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"--config: {path}: is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"--config: {path}: must hold a JSON object")
    if unknown := sorted(set(document) - names):
        raise InvalidInput(
            f"--config: {path}: unknown settings {', '.join(unknown)}; perhaps a newer version wrote the file"
        )
    return {name: value for name, value in document.items() if value is not None}
