"""`ShellWords`: the words of a command, without shell syntax and the programs in front that only run it.

`command_line` finds the launcher of a server in them. Pure.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from mamba_cli.errors import InvalidInput

VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPERATOR = re.compile(r"[();<>|&]+")
_PROGRAMS = frozenset(
    ("env", "sudo", "exec", "nohup", "time", "nice", "uv", "uvx", "run", "poetry", "pipx", "conda")
)
"""Programs, and their commands, that run the words behind them."""
_CONTAINERS = frozenset(("docker", "podman", "nerdctl"))
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_IMAGE = re.compile(r"[\w.:-]+/[\w./-]*(vllm|sglang)[\w./-]*(:[\w.-]+)?(@sha256:\w+)?")
"""An image whose name says that it holds vLLM or SGLang."""
_TYPOGRAPHIC = re.compile("[“”„‘’‚–—]")


@dataclass(frozen=True, slots=True)
class ShellWords:
    """The words of one command, with the variables before it and the rest of the line behind it."""

    words: tuple[str, ...]
    """The command from its program on."""
    variables: tuple[str, ...] = ()
    """Variables that are set for the command, as `NAME=value`."""
    rest: tuple[str, ...] = ()
    """Words of the shell behind the command, the operator included."""


def commands_in(text: str) -> list[ShellWords]:
    """Return the commands of a line, each without the programs that only run it.

    Raises `InvalidInput` if a quote has no end.
    """
    # A command copied from a page often continues behind backslashes.
    words = _split(text.replace("\\\n", " "))
    places = [number for number, word in enumerate(words) if _OPERATOR.fullmatch(word)]
    commands: list[ShellWords] = []
    for begin, end in zip([-1, *places], [*places, len(words)], strict=True):
        commands += _without_programs(words[begin + 1 : end], tuple(words[end:]))
    return commands


def is_typographic(word: str) -> bool:
    """Return whether a word has quotes or dashes of a text processor, which no program reads."""
    return _TYPOGRAPHIC.search(word) is not None


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise InvalidInput(
            f"the command cannot be read ({str(error).lower()}): close each quote, or leave it out"
        ) from error


def _without_programs(words: list[str], rest: tuple[str, ...]) -> Iterator[ShellWords]:
    """Yield the command behind variables and programs such as `sudo`; of a shell, each command of its script.

    `rest` are the words of the line behind it.
    """
    variables: list[str] = []
    number = 0
    while number < len(words) and (_name(words[number]) in _PROGRAMS or VARIABLE.fullmatch(words[number])):
        if "=" in words[number]:
            variables.append(words[number])
        number += 1
    words = words[number:]
    if not words:
        return
    if _name(words[0]) in _SHELLS and len(words) > 1:
        yield from commands_in(words[-1])
        return
    if _name(words[0]) in _CONTAINERS:
        words = _in_container(words)
    yield ShellWords(tuple(words), tuple(variables), rest)


def _in_container(words: list[str]) -> list[str]:
    """Return the command behind the image; images of vLLM start the server by themselves."""
    place = next((number for number, word in enumerate(words) if _IMAGE.fullmatch(word)), len(words))
    command = words[place + 1 :]
    if command and command[0].startswith("-") and "vllm" in words[place]:
        return ["vllm", "serve", *command]
    return command


def _name(word: str) -> str:
    return word.rpartition("/")[2]
