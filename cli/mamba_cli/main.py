"""The command line: collects the sub-commands and gives them one style of errors and exit codes.

Each sub-command is a module of `mamba_cli.commands` with a function `command`, and with `CLASS` where a
settings model defines the options. Those modules import slow packages inside functions, so that `--help`
stays quick.
"""

import errno
import importlib
import inspect
import io
import os
import re
import shutil
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from mamba_cli.errors import CliError
from mamba_cli.extras import missing_extra
from mamba_cli.plain_help import NARROW, CommandWithPanels

COMMANDS: tuple[str, ...] = (
    "bench",
    "chat",
    "config",
    "crd",
    "doctor",
    "download",
    "gateway",
    "list",
    "operator",
    "plan",
    "ps",
    "pull",
    "rollout",
    "run",
    "scaling",
    "serve",
    "session",
    "status",
    "stop",
    "up",
    "usage",
    "why",
)

_MODULE_OF = {
    "download": "models.download",
    "list": "models.listing",
    "operator": "operate",
    "ps": "local.ps",
    "pull": "models.pull",
    "stop": "local.stop",
    "up": "local.up",
}
"""Module of a command below `mamba_cli.commands`, by the command, where the two have different names."""
_FULL = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="mambaserve",
    help="Serve hybrid Mamba2/attention language models: on this machine or on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"mambaserve {version('mambaserve')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    # Without a callback, typer would not expect the command's name if there were only one command.
    pass


def application(command: str = "") -> typer.Typer:
    """Return the application with all its commands; with `command` alone if that is the name of one."""
    _collect(command)
    return app


def _collect(word: str = "") -> None:
    """Add the command `word` to `app`; all commands if `word` is not the name of one.

    A command line that begins with a command needs no other one, and preparing all of them takes longer than
    most commands run.
    """
    needed = (word,) if word in COMMANDS else COMMANDS
    app.registered_commands.clear()
    app.registered_groups.clear()
    for name in needed:
        module = importlib.import_module(f"mamba_cli.commands.{_MODULE_OF.get(name, name)}")
        if isinstance(target := module.command, typer.Typer):
            for command in target.registered_commands:
                command.short_help = _summary(command.callback)
            app.add_typer(target)
        else:
            app.command(
                getattr(module, "NAME", name),
                short_help=_summary(target),
                cls=getattr(module, "CLASS", CommandWithPanels),
                context_settings=getattr(module, "CONTEXT", None),
            )(target)


def _summary(command: Any) -> str:
    """Return the first clause of a command's description, which fits a list of commands uncut."""
    return re.split(r"[.:;](?:\s|$)", inspect.getdoc(command) or "", maxsplit=1)[0].replace("\n", " ") + "."


def end_on_sigterm(pid: int | None = None) -> None:
    """Make SIGTERM end process 1 as it ends any other process.

    The kernel ignores SIGTERM for process 1 of a container while it has no handler, and servers install the
    handler of their drain only after seconds of imports. In the project's pods process 1 is another program;
    this function is for containers that are started by hand.

    Args:
        pid: number of this process; None = ask the system.
    """
    if (os.getpid() if pid is None else pid) == 1:
        signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run() -> None:
    """Run `mambaserve` and exit with the codes of `mamba_cli.errors`."""
    end_on_sigterm()
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed, as the null device.

    Otherwise the streams are None here, and the next file or socket gets the number of a standard stream, to
    which children write their output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _run() -> None:
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # In a locale without block characters, a plan shows question marks in their place.
        sys.stdout.reconfigure(errors="replace")
    _collect(sys.argv[1] if sys.argv[1:] else "")
    if shutil.get_terminal_size().columns < NARROW:
        # On a narrow terminal the tables of the rich help cut names, while plain help wraps.
        app.rich_markup_mode = None
    try:
        try:
            app()
        finally:
            # A failing flush can be reported here, but not while the interpreter ends.
            sys.stdout.flush()
    except CliError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if (missing := missing_extra(error, command)) is None:
            raise
        _print_error(str(missing))
        sys.exit(missing.exit_code)
    except OSError as error:
        if error.errno not in (*_FULL, errno.EPIPE):
            raise
        # Otherwise the interpreter would flush the buffer at its end and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:  # the reader of the output has ended
            sys.exit(1)
        _print_error(f"{error.filename or 'standard output'}: {error.strerror}")
        sys.exit(1)


def _print_error(message: str) -> None:
    # Messages are never wrapped, so that a path in a log stays one word.
    line = f"[bold red]error:[/] {escape(message)}"
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    run()
