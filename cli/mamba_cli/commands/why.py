"""`mambaserve why`: why a prompt resumed no more, of a recent request or of a prompt that nobody sends."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from mamba_cli.errors import InvalidInput
from mamba_cli.output import OutputFormat, print_document
from mamba_cli.sessions.call_options import TokenFile, Url, admin_token, conversation_body

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:/+=@-]+")


def command(
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST]",
            envvar="MAMBASERVE_WHY_REQUEST",
            help="Identifier of an answer, or the X-Request-Id of a request, that was sent with the header "
            "X-Mambaserve-Explain: 1.",
        ),
    ] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            envvar="MAMBASERVE_WHY_PROMPT",
            help="File with a prompt to look up, of which nothing is computed: a list of messages or a "
            "request's body as JSON, or text; - reads standard input.",
        ),
    ] = None,
    key: Annotated[
        str,
        typer.Option(
            envvar="MAMBASERVE_WHY_KEY",
            help="Name of the API key whose cached texts may be shown, with --prompt.",
        ),
    ] = "",
    url: Url = "http://127.0.0.1:8000",
    admin_token_file: TokenFile = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, envvar="MAMBASERVE_WHY_TIMEOUT", help="Seconds that an engine may take."),
    ] = 30.0,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", envvar="MAMBASERVE_OUTPUT", help="Format of the result.")
    ] = OutputFormat.table,
) -> None:
    """Explain why a prompt resumed no more: where it parts from the nearest cached prompt, and in which text.

    Exit code 2: no explanation of the request is kept.
    """
    import asyncio

    from mamba_cli.sessions.admin_calls import admin_urls
    from mamba_cli.sessions.explanation_calls import ExplanationClient

    if (request is None) == (prompt is None):
        raise InvalidInput("give the identifier of a request, or a prompt with --prompt FILE")
    if request is not None and not _IDENTIFIER.fullmatch(request):
        raise InvalidInput(
            f"{request[:128]!r} is no identifier of a request: give the id of an answer or its X-Request-Id, "
            "without blanks and without characters other than letters, digits and ._:/+=@-"
        )
    if key and prompt is None:
        raise InvalidInput("--key counts with --prompt alone: the text that a request was shown is kept")
    client = ExplanationClient(admin_urls(url), admin_token(admin_token_file), timeout)
    if prompt is not None:
        answers = asyncio.run(client.dry_run(conversation_body(prompt, text_too=True), key))
    else:
        answers = [asyncio.run(client.recent(request or ""))]
    if output is not OutputFormat.table:
        print_document(answers, output)
        return
    for answer in answers:
        typer.echo(f"engine {answer['engine']}")
        for explained in answer["explain"]:
            typer.echo("\n".join(_lines(explained)))


def _lines(explained: dict[str, Any]) -> list[str]:
    """Return the lines about one prompt. Texts are JSON strings, so that no character acts on a terminal."""
    import json

    counts = (
        f"  resumed {explained['resumed_tokens']} of {explained['prompt_tokens']} tokens, "
        f"{explained['common_tokens']} in common with the nearest cached prompt ({explained['reason']})"
    )
    lines = [counts, f"  {explained['explanation']}"]
    for field, name in (("shared_text", "both"), ("prompt_text", "prompt"), ("cached_text", "cached")):
        if explained[field] is not None:
            lines.append(f"    {name:<7} {json.dumps(explained[field], ensure_ascii=False)}")
    return lines
