"""`read_command`: the arguments of `vllm serve` or of SGLang's server, one by one."""

import re
from collections.abc import Mapping

from mamba_cli.errors import InvalidInput
from mamba_cli.migration.migrated import Migrated, Take, model_of
from mamba_cli.migration.sglang_arguments import SGLANG
from mamba_cli.migration.shell_words import ShellWords, commands_in, is_typographic
from mamba_cli.migration.vllm_arguments import VLLM

_LAUNCHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vLLM", ("vllm", "serve")),
    ("vLLM", ("python", "-m", "vllm.entrypoints.openai.api_server")),
    ("SGLang", ("sglang", "serve")),
    ("SGLang", ("python", "-m", "sglang.launch_server")),
)
LAUNCHERS = "; ".join(" ".join(launcher) for _, launcher in _LAUNCHERS)
"""The known commands, for messages."""
_ARGUMENTS: Mapping[str, Mapping[str, Take]] = {"vLLM": VLLM, "SGLang": SGLANG}
_ATTACHED = re.compile(r"(-[a-z]{1,2})(\d+)")
"""A short flag with its number behind it, such as `-tp2`."""


def is_command(text: str) -> bool:
    """Return whether the text is the command line of another server. Raises `InvalidInput`."""
    return _command(text) is not None


def read_command(text: str) -> Migrated:
    """Return the object that replaces the command line. Raises `InvalidInput` for one without a model."""
    launch = _command(text)
    if launch is None:
        raise InvalidInput(f"{text[:60]!r} is no command line of another server: {LAUNCHERS} are known")
    server, command, arguments = launch
    migrated = Migrated(server)
    for variable in command.variables:
        migrated.leave_out(variable.partition("=")[0], f"a variable of {server}")
    if command.rest:
        migrated.leave_out(" ".join(command.rest), "words of the shell behind the command are not read")
    read_arguments(migrated, arguments)
    return migrated


def arguments_in(text: str) -> list[str] | None:
    """Return the arguments of the server that a command line starts; None = it starts none.

    Raises `InvalidInput` for a command that cannot be read.
    """
    launch = _command(text)
    return None if launch is None else launch[2]


def read_arguments(migrated: Migrated, words: list[str]) -> None:
    """Take the arguments of a server into the object. Raises `InvalidInput` if they name no model."""
    table = _ARGUMENTS[migrated.server]
    rest = list(words)
    if rest and not rest[0].startswith("-"):
        model_of(migrated, "model", rest.pop(0))
    named: list[tuple[str, str]] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            migrated.leave_out(word, _stray(word))
            continue
        flag, has_value, value = word.partition("=")
        if attached := _ATTACHED.fullmatch(word):
            flag, has_value, value = attached[1], "=", attached[2]
        if not has_value:
            values = []
            while rest and not _is_flag(rest[0]):
                values.append(rest.pop(0))
            value = " ".join(values)
        named.append((flag, value))
    # The model comes first: its revision belongs to its URI.
    for flag, value in sorted(named, key=lambda pair: pair[0] not in ("--model", "--model-path")):
        handler = table.get(flag.replace("_", "-"))
        if handler is None:
            migrated.leave_out(flag, "not known here: look for it in docs/reference/mambadeployment.md")
        else:
            handler(migrated, f"{flag} {value}".strip(), value)
    if not migrated.spec.get("model", {}).get("uri"):
        raise InvalidInput(f"the {migrated.server} command names no model")


def _stray(word: str) -> str:
    """Return the reason why a word that belongs to no argument is left out."""
    if is_typographic(word):
        return "its quotes or dashes are those of a text processor: write ' and --"
    return "no argument stands before it"


def _command(text: str) -> tuple[str, ShellWords, list[str]] | None:
    """Return the server, the command that starts it, and its arguments; None = no known server is started."""
    for command in commands_in(text):
        plain = [re.sub(r"^python[\d.]+$", "python", word.rpartition("/")[2]) for word in command.words[:3]]
        for server, launcher in _LAUNCHERS:
            if tuple(plain[: len(launcher)]) == launcher:
                return server, command, list(command.words[len(launcher) :])
    return None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
