"""`mambaserve chat`: a conversation with an endpoint, and the prompt tokens that each turn resumed."""

from typing import Annotated

import typer

from mamba_cli.chat.talk_options import MaxTokensOption, SystemOption, TemperatureOption
from mamba_cli.errors import InvalidInput


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL] [MESSAGE]",
            help="URL of a gateway or an engine, and one message. Without a message, chat starts a "
            "conversation, or reads the message from standard input where that is not a terminal.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="MAMBASERVE_URL",
            help="URL to use where the first argument is none, or the name of a deployment that `up` serves.",
        ),
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_CHAT_MODEL", help="Model; default: the first one that the endpoint lists."
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_API_KEY", help="API key, where the endpoint requires one."),
    ] = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            envvar="MAMBASERVE_CHAT_TIMEOUT",
            help="Seconds without a byte from the endpoint after which chat gives up.",
        ),
    ] = 300.0,
) -> None:
    """Talk to a served model: stream answers, and show how many prompt tokens each turn resumed."""
    from mamba_cli.chat.talk import TalkOptions, first_message, talk_to
    from mamba_cli.endpoint import base_url, without_scheme
    from mamba_cli.local.running import running

    arguments = list(words or ())
    target = arguments.pop(0) if arguments and "://" in arguments[0] else url
    if len(arguments) > 1:
        raise without_scheme(arguments[0]) or InvalidInput(
            "the message must be one argument: put it in quotes"
        )
    if "://" not in target:
        # The name of a deployment that runs on this machine stands for its URL.
        named = next((deployment for deployment in running() if deployment.name == target), None)
        if named is not None:
            target, model = named.url, model or named.model
    target = base_url(target)
    message = first_message(arguments[0] if arguments else None)
    try:
        talk_to(target, message, TalkOptions(model, api_key, system, max_tokens, temperature, timeout))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
