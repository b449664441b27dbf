"""The command line: collects the sub-commands, gives them one error style and one set of exit codes.

Each sub-command is one module of `mamba_cli.commands` with a function `command` (and a `CLASS` where its
options come from a settings model); those modules import
typer and rich at most, and everything heavy inside the function, so that `--help` stays quick.
"""

import importlib
import io
import sys

import typer
from rich.console import Console
from rich.markup import escape

from mamba_cli.errors import CliError
from mamba_cli.first_process import obey_from_the_start

COMMANDS: tuple[str, ...] = (
    "bench",
    "config",
    "crd",
    "gateway",
    "operate",
    "plan",
    "serve",
    "up",
)

app = typer.Typer(
    name="mambaserve",
    help="Serve hybrid Mamba2/attention language models: on this machine or on Kubernetes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    # Without a callback, an application with one command would not expect that command's name.
    pass


def _collect() -> None:
    for name in COMMANDS:
        module = importlib.import_module(f"mamba_cli.commands.{name}")
        if isinstance(target := module.command, typer.Typer):
            app.add_typer(target)
        else:
            app.command(
                getattr(module, "NAME", name),
                cls=getattr(module, "CLASS", None),
                context_settings=getattr(module, "CONTEXT", None),
            )(target)


def run() -> None:
    """Entry point of `mambaserve`; exits with the codes of `mamba_cli.errors`."""
    obey_from_the_start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where the locale has no block characters a plan is shown with question marks in their place.
        sys.stdout.reconfigure(errors="replace")
    _collect()
    try:
        app()
    except CliError as error:
        # Never wrapped: a path in the message stays one word for whoever reads it in a log.
        said = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(said, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run()
