"""`talk_to`: one message to an endpoint or a whole conversation with it, for `chat` and `run`."""

import asyncio
import sys
from dataclasses import dataclass

import aiohttp
from rich.console import Console

from mamba_cli.chat.client import ChatClient
from mamba_cli.chat.conversation import Conversation, read_line
from mamba_cli.endpoint import first_model
from mamba_cli.errors import InvalidInput

CONNECT_TIMEOUT = 10.0
"""Seconds within which a connection must be established."""


@dataclass(frozen=True, slots=True)
class TalkOptions:
    """Options of a conversation: how it begins, which model answers, and how answers are sampled."""

    model: str | None = None
    """Model of the requests; None = the first one that the endpoint lists."""
    api_key: str | None = None
    system: str | None = None
    """System message that the conversation begins with."""
    max_tokens: int = 512
    temperature: float | None = None
    """Sampling temperature; None = the model's."""
    timeout: float = 300.0
    """Seconds without a byte from the endpoint after which the conversation ends."""


def first_message(argument: str | None) -> str | None:
    """Return the message of the argument or of standard input; None = talk at the terminal.

    Raises `InvalidInput` for an empty message.
    """
    if argument is None and sys.stdin.isatty():
        return None
    message = sys.stdin.read() if argument is None else argument
    if not message.strip():
        raise InvalidInput("there is no message: give one, or write it to standard input")
    return message


def talk_to(url: str, message: str | None, options: TalkOptions) -> None:
    """Send `message` and show the answer, or hold a conversation at the terminal if it is None.

    Raises `RunFailed`, `InvalidInput`, and KeyboardInterrupt for Ctrl-C outside of a conversation's turn.
    """
    sampling: dict[str, float] = {"max_tokens": options.max_tokens}
    if options.temperature is not None:
        sampling["temperature"] = options.temperature

    async def connect() -> ChatClient:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=options.timeout)
        session = aiohttp.ClientSession(timeout=limits)
        try:
            name = options.model or await first_model(session, url, options.api_key)
        except BaseException:
            await session.close()
            raise
        return ChatClient(session, url, name, options.api_key, sampling)

    with asyncio.Runner() as runner:
        client = runner.run(connect())
        try:
            aside = Console(stderr=message is not None)
            conversation = Conversation(client, runner, sys.stdout, aside, options.system)
            if message is None:
                conversation.talk(read_line)
            else:
                conversation.ask(message)
        finally:
            runner.run(client.session.close())
