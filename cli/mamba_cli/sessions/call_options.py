"""Options and files of `mambaserve session` and `mambaserve why`, which call admin servers of engines.

It imports nothing that takes time, because every command's help is built from it.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mamba_cli.errors import InvalidInput

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="MAMBASERVE_URL",
        help="URL or name of a deployment that `up` serves, or the admin URL of an engine.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="MAMBASERVE_ADMIN_TOKEN_FILE",
        help="File with the admin token, where the engine requires one.",
    ),
]


def conversation_body(file: Path, *, text_too: bool = False) -> bytes:
    """Return the body of an admin call about the conversation in a JSON file; - reads standard input.

    With `text_too`, a file that is neither a JSON object nor a list is the text of a prompt. Raises
    InvalidInput.
    """
    document: Any
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        if text_too and not text.lstrip().startswith(("{", "[")):
            document = {"prompt": text}
        else:
            document = json.loads(text)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f'{file} is no JSON: {error}; write a prompt as {{"prompt": …}}') from error
    if isinstance(document, list):
        document = {"messages": document}
    if not isinstance(document, dict):
        raise InvalidInput(f"{file}: write a list of messages, or an object with 'messages' or 'prompt'")
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def admin_token(file: Path | None) -> str | None:
    """Return the token in a file; None = no file. Raises InvalidInput."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--admin-token-file: {file} cannot be read: {error}") from error
