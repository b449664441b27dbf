"""`read_command`: the arguments of `vllm serve` or of SGLang's server, one by one."""

import re
import shlex
from collections.abc import Mapping

from mamba_cli.errors import InvalidInput
from mamba_cli.migration.migrated import Migrated, Take, model_of
from mamba_cli.migration.sglang_arguments import SGLANG
from mamba_cli.migration.vllm_arguments import VLLM

_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_LAUNCHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vLLM", ("vllm", "serve")),
    ("vLLM", ("python", "-m", "vllm.entrypoints.openai.api_server")),
    ("SGLang", ("sglang", "serve")),
    ("SGLang", ("python", "-m", "sglang.launch_server")),
)
_ARGUMENTS: Mapping[str, Mapping[str, Take]] = {"vLLM": VLLM, "SGLang": SGLANG}


def is_command(text: str) -> bool:
    """Return whether the text is the command line of another server."""
    return _launcher(_words(text)) is not None


def read_command(text: str) -> Migrated:
    """Return what the command line becomes. Raises `InvalidInput` for one without a model."""
    words = _words(text)
    launch = _launcher(words)
    if launch is None:
        launchers = "; ".join(" ".join(launcher) for _, launcher in _LAUNCHERS)
        raise InvalidInput(f"{text[:60]!r} is no command line of another server: {launchers} are known")
    server, length = launch
    variables = [word for word in words if _VARIABLE.fullmatch(word)]
    migrated = Migrated(server)
    for variable in variables[: len(words) - len(_plain(words))]:
        migrated.leave_out(variable.partition("=")[0], f"a variable of {server}")
    read_arguments(migrated, _plain(words)[length:])
    return migrated


def read_arguments(migrated: Migrated, words: list[str]) -> None:
    """Take the arguments of a server into the object. Raises `InvalidInput` if they name no model."""
    table = _ARGUMENTS[migrated.server]
    rest = list(words)
    if rest and not rest[0].startswith("-"):
        model_of(migrated, "model", rest.pop(0))
    named: list[tuple[str, str]] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            migrated.leave_out(word, "no argument stands before it")
            continue
        flag, has_value, value = word.partition("=")
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


def _words(text: str) -> list[str]:
    try:
        # A command copied from a page often continues behind backslashes.
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InvalidInput(f"the command cannot be read: {error}") from error


def _plain(words: list[str]) -> list[str]:
    """Return the words behind `NAME=value` and `env`."""
    number = 0
    while number < len(words) and (words[number] == "env" or _VARIABLE.fullmatch(words[number])):
        number += 1
    return words[number:]


def _launcher(words: list[str]) -> tuple[str, int] | None:
    """Return the server, and how many words start it; None if no known server is started."""
    plain = [word.rpartition("/")[2].replace("python3", "python") for word in _plain(words)[:3]]
    for server, launcher in _LAUNCHERS:
        if tuple(plain[: len(launcher)]) == launcher:
            return server, len(launcher)
    return None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
