"""`mambaserve chat`: talk to an endpoint in the terminal, and see what each turn resumed."""

from typing import Annotated

import typer

from mamba_cli.errors import InvalidInput


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL] [MESSAGE]",
            help="Endpoint of a gateway or an engine, and what to ask; without a message: a conversation, or "
            "the message from standard input when that is no terminal.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="MAMBASERVE_URL",
            help="Endpoint where no URL is given first, or the name of what `up` serves.",
        ),
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None,
        typer.Option(envvar="MAMBASERVE_CHAT_MODEL", help="Model; default: the first model listed."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="MAMBASERVE_API_KEY", help="Key that the endpoint asks for.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(envvar="MAMBASERVE_CHAT_SYSTEM", help="System message at the beginning.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, envvar="MAMBASERVE_CHAT_MAX_TOKENS", help="Longest answer.")
    ] = 512,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, envvar="MAMBASERVE_CHAT_TEMPERATURE", help="0 = no chance; default: the model's"),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, envvar="MAMBASERVE_CHAT_TIMEOUT", help="Most seconds of silence."),
    ] = 300.0,
) -> None:
    """Talk to a served model: answers as they are made, and how much of each prompt was resumed."""
    import asyncio
    import sys

    import aiohttp
    from rich.console import Console

    from mamba_cli.chat.client import ChatClient
    from mamba_cli.chat.conversation import Conversation, read_line
    from mamba_cli.endpoint import base_url, first_model, without_scheme
    from mamba_cli.local.running import running

    given = list(words or ())
    target = given.pop(0) if given and "://" in given[0] else url
    if len(given) > 1:
        raise without_scheme(given[0]) or InvalidInput("the message is several arguments: put it in quotes")
    if "://" not in target:
        # A name of something that runs here is as good as its URL.
        target = next((each.url for each in running() if each.name == target), target)
    target = base_url(target)
    talk = not given and sys.stdin.isatty()
    message = given[0] if given else "" if talk else sys.stdin.read()
    if not talk and not message.strip():
        raise InvalidInput("there is no message: give one, or write it to standard input")
    sampling: dict[str, float] = {"max_tokens": max_tokens}
    if temperature is not None:
        sampling["temperature"] = temperature

    async def connect() -> ChatClient:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout)
        session = aiohttp.ClientSession(timeout=limits)
        try:
            name = model or await first_model(session, target, api_key)
        except BaseException:
            await session.close()
            raise
        return ChatClient(session, target, name, api_key, sampling)

    with asyncio.Runner() as runner:
        client = runner.run(connect())
        try:
            conversation = Conversation(client, runner, sys.stdout, Console(stderr=not talk), system)
            if talk:
                conversation.talk(read_line)
            else:
                conversation.ask(message)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            runner.run(client.session.close())
