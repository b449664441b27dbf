"""`Conversation`: reads lines from the terminal and shows answers as they arrive; Ctrl-C ends one turn.

The text of answers goes to `out`, everything else, including the model's reasoning, to `aside`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from mamba_cli.chat.client import ChatAnswer, ChatClient, Message, OutputError
from mamba_cli.errors import CliError

HELP = "/new begins a new conversation, Ctrl-C stops an answer, /bye or Ctrl-D ends the chat."
_END = ("/bye", "/exit", "/quit")
Read = Callable[[], str]
"""Returns one line of input; raises EOFError at its end and KeyboardInterrupt for Ctrl-C."""


class Conversation:
    """Keeps the messages of one chat, sends new ones and shows the answers; `runner` runs the client."""

    def __init__(
        self,
        client: ChatClient,
        runner: asyncio.Runner,
        out: TextIO,
        aside: Console,
        system: str | None = None,
    ) -> None:
        self._client, self._runner, self._out, self._aside = client, runner, out, aside
        self._begin: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._begin)
        self._thinking = False
        """Whether the last text on the terminal is reasoning."""

    def ask(self, text: str) -> ChatAnswer:
        """Send one message, show the answer and return it.

        Raises `RunFailed`, `InvalidInput`, and the OSError of a full disk or a closed pipe; the conversation
        then stays unchanged.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        self._thinking = False
        try:
            answer = self._runner.run(self._client.answer(messages, self._show, self._show_reasoning))
        except OutputError as error:
            raise error.cause from None
        self._show("\n")
        self._aside.print(f"[{answer.resumed}]", style="dim", highlight=False, markup=False)
        message = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        self.messages = [*messages, message]
        return answer

    def talk(self, read: Read) -> None:
        """Send messages and show answers until the input ends.

        A failed or stopped turn leaves the conversation as it was.
        """
        self._aside.print(
            f"{self._client.model} at {self._client.url}. {HELP}", style="dim", highlight=False, markup=False
        )
        while True:
            try:
                text = read().strip()
            except EOFError:
                self._aside.print()
                return
            except KeyboardInterrupt:
                self._aside.print(f"\n{HELP}", style="dim", highlight=False)
                continue
            if text in _END:
                return
            if text == "/new":
                self.messages = list(self._begin)
            elif text in ("/help", "/?"):
                self._aside.print(HELP, style="dim", highlight=False)
            elif text:
                self._turn(text)

    def _turn(self, text: str) -> None:
        plain = self._client.plain
        try:
            self.ask(text)
        except KeyboardInterrupt:
            self._aside.print("\n[stopped]", style="dim", highlight=False, markup=False)
        except CliError as error:
            self._aside.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        if self._client.plain and not plain:
            notice = "[no chat template: the model continues the text of the conversation]"
            self._aside.print(notice, style="dim", highlight=False, markup=False)

    def _show_reasoning(self, piece: str) -> None:
        self._thinking = True
        self._aside.print(piece, style="dim", end="", highlight=False, markup=False, soft_wrap=True)

    def _show(self, piece: str) -> None:
        if self._thinking:
            self._thinking = False
            self._aside.print()
        self._out.write(piece)
        self._out.flush()


def read_line() -> str:
    """Read a line from the terminal, with line editing and history."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` line editing
    return input("> ")
