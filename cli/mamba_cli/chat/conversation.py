"""The terminal's side of a conversation: reads lines, shows answers as they arrive, lives through Ctrl-C.

Text of answers goes to `out`, everything else to `aside`, what the model thinks before it answers included.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from mamba_cli.chat.client import ChatAnswer, ChatClient, Message, OutputError
from mamba_cli.errors import CliError

HELP = "/new begins a new conversation, Ctrl-C stops an answer, Ctrl-D ends."
Read = Callable[[], str]
"""One line from the user; raises EOFError at the end and KeyboardInterrupt for Ctrl-C."""


class Conversation:
    """Turns with one client. `runner` is where its session lives."""

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
        """What was shown last is a thought."""

    def ask(self, text: str) -> ChatAnswer:
        """One turn. Raises `RunFailed`, `InvalidInput`, and the OSError of a full disk or a closed pipe; the
        conversation is then as it was."""
        messages = [*self.messages, {"role": "user", "content": text}]
        self._thinking = False
        try:
            answer = self._runner.run(self._client.answer(messages, self._show, self._show_reasoning))
        except OutputError as error:
            raise error.cause from None
        self._show("\n")
        self._aside.print(f"[{answer.resumed}]", style="dim", highlight=False, markup=False)
        said = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            said["reasoning_content"] = answer.reasoning
        self.messages = [*messages, said]
        return answer

    def talk(self, read: Read) -> None:
        """Turns until the end of input. A turn that fails or is stopped costs that turn alone."""
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
            if text == "/new":
                self.messages = list(self._begin)
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
            said = "[no chat template: the model continues the text of the conversation]"
            self._aside.print(said, style="dim", highlight=False, markup=False)

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
    """A line from the terminal, with its keys for editing and its history."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - what `input` edits with once it is imported
    return input("> ")
