"""`mambaserve session save|load|list`: conversations as files, so that they go on elsewhere or later."""

from pathlib import Path
from typing import Annotated

import typer

from mamba_cli.errors import InvalidInput
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.plain_help import CommandWithPanels
from mamba_cli.sessions.call_options import TokenFile, Url, admin_token, conversation_body

command = typer.Typer(name="session", help="Save and load conversations.", no_args_is_help=True)

Timeout = Annotated[
    float,
    typer.Option(
        min=0.001,
        envvar="MAMBASERVE_SESSION_TIMEOUT",
        help="Seconds without a byte from the engine after which the command gives up.",
    ),
]


@command.command("save", cls=CommandWithPanels)
def save(
    conversation: Annotated[
        Path,
        typer.Argument(
            metavar="CONVERSATION",
            envvar="MAMBASERVE_SESSION_CONVERSATION",
            help="JSON file: a list of messages, a body of a chat request with 'messages', or an object "
            "with a 'prompt'; - reads standard input.",
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            envvar="MAMBASERVE_SESSION_FILE",
            help="File to write; default: the conversation's name with the suffix .session.",
        ),
    ] = None,
    url: Url = "http://127.0.0.1:8000",
    admin_token_file: TokenFile = None,
    timeout: Timeout = 300.0,
) -> None:
    """Write a conversation and the state of its text to a file; what is not cached is computed."""
    import asyncio

    from mamba_cli.sessions.admin_calls import AdminClient, admin_urls
    from mamba_cli.sessions.session_list import SUFFIX

    if file is None and str(conversation) == "-":
        raise InvalidInput("standard input has no name: give the FILE to write")
    target = file or conversation.with_suffix(SUFFIX)
    body = conversation_body(conversation)
    client = AdminClient(admin_urls(url), admin_token(admin_token_file), timeout)
    session = asyncio.run(client.save(body, target))
    typer.echo(
        f"saved {session.header.depth} tokens of {session.notes.model} to {target} "
        f"({target.stat().st_size:,} bytes)",
        err=True,
    )


@command.command("load", cls=CommandWithPanels)
def load(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", envvar="MAMBASERVE_SESSION_FILE", help="A file that `save` wrote."),
    ],
    url: Url = "http://127.0.0.1:8000",
    admin_token_file: TokenFile = None,
    timeout: Timeout = 300.0,
) -> None:
    """Install a saved conversation in an engine, so that the next request that begins with it resumes.

    Exit code 2: the file is damaged or of another model; 3: it does not fit the arena.
    """
    import asyncio
    import os

    from mamba_cli.sessions.admin_calls import AdminClient, admin_urls, checked

    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            session = checked(descriptor, file)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    client = AdminClient(admin_urls(url), admin_token(admin_token_file), timeout)
    reply = asyncio.run(client.load(file, session.notes.conversation))
    how = "loaded" if reply["installed"] else "already cached:"
    typer.echo(f"{how} {reply['depth']} tokens of {reply['model']} from {file}", err=True)


@command.command("list", cls=CommandWithPanels)
def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", envvar="MAMBASERVE_SESSION_FOLDER", help="Folder with session files."
        ),
    ] = Path(),
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
) -> None:
    """Show the session files in a folder: model, depth, size, date, and which of them are damaged."""
    from rich.console import Console
    from rich.table import Table

    from mamba_cli.sessions.session_list import listed

    sessions = listed(folder)
    if output is not OutputFormat.table:
        print_document([session.to_json() for session in sessions], output)
        return
    table = Table("file", "model", "tokens", "bytes", "saved", "state")
    for session in sessions:
        table.add_row(
            session.name, session.model, str(session.depth), f"{session.size:,}", session.saved_at,
            session.damage or "whole",
        )  # fmt: skip
    Console().print(table)
