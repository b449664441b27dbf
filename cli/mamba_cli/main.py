"""The command line: collects the sub-commands, gives them one error style and one set of exit codes.

Each sub-command is one module of `mamba_cli.commands` with a function `command` (and a `CLASS` where its
options come from a settings model); those modules import
typer and rich at most, and everything heavy inside the function, so that `--help` stays quick.
"""

import errno
import importlib
import inspect
import io
import os
import re
import shutil
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from mamba_cli.errors import CliError
from mamba_cli.extras import missing_extra
from mamba_cli.init_process import end_on_sigterm
from mamba_cli.plain_help import NARROW, CommandWithPanels

COMMANDS: tuple[str, ...] = (
    "bench",
    "chat",
    "config",
    "crd",
    "download",
    "gateway",
    "operate",
    "plan",
    "scaling",
    "serve",
    "status",
    "up",
)

_FULL = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="mambaserve",
    help="Serve hybrid Mamba2/attention language models: on this machine or on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mambaserve {version('mambaserve')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    # Without a callback, an application with one command would not expect that command's name.
    pass


def application() -> typer.Typer:
    """The application with all its commands."""
    _collect()
    return app


def _collect() -> None:
    if app.registered_commands:
        return
    for name in COMMANDS:
        module = importlib.import_module(f"mamba_cli.commands.{name}")
        if isinstance(target := module.command, typer.Typer):
            for each in target.registered_commands:
                each.short_help = _summary(each.callback)
            app.add_typer(target)
        else:
            app.command(
                getattr(module, "NAME", name),
                short_help=_summary(target),
                cls=getattr(module, "CLASS", CommandWithPanels),
                context_settings=getattr(module, "CONTEXT", None),
            )(target)


def _summary(command: Any) -> str:
    """What a list of commands says of it: the first clause, whole, where a longer text would be cut."""
    return re.split(r"[.:;](?:\s|$)", inspect.getdoc(command) or "", maxsplit=1)[0].replace("\n", " ") + "."


def run() -> None:
    """Entry point of `mambaserve`; exits with the codes of `mamba_cli.errors`."""
    end_on_sigterm()
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_what_is_closed() -> None:
    """Standard streams that the caller closed lead nowhere: else they are None here, and the next file or
    socket that is opened gets a number that children write their output to."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _run() -> None:
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where the locale has no block characters a plan is shown with question marks in their place.
        sys.stdout.reconfigure(errors="replace")
    _collect()
    if shutil.get_terminal_size().columns < NARROW:
        # The tables of the rich help would cut names there; the plain one wraps.
        app.rich_markup_mode = None
    try:
        try:
            app()
        finally:
            # Now, not while the interpreter ends, when nobody can be told any more.
            sys.stdout.flush()
    except CliError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if (missing := missing_extra(error, command)) is None:
            raise
        _complain(str(missing))
        sys.exit(missing.exit_code)
    except OSError as error:
        if error.errno not in (*_FULL, errno.EPIPE):
            raise
        # What is still in the buffer would be tried once more, and fail once more, at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:  # whoever read it has had enough
            sys.exit(1)
        _complain(f"{error.filename or 'standard output'}: {error.strerror}")
        sys.exit(1)


def _complain(message: str) -> None:
    # Never wrapped: a path in the message stays one word for whoever reads it in a log.
    said = f"[bold red]error:[/] {escape(message)}"
    Console(stderr=True).print(said, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    run()
