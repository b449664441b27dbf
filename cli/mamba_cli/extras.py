"""`missing_extra`: the sentence for a module that only an extra of this distribution brings.

The extras and what they bring are read from the metadata of the installed distribution. `main` calls it once,
for every command.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec

from mamba_cli.errors import InvalidInput

OWN = "mambaserve"
EXTRAS_OF_COMMAND = {
    "download": "server",
    "gateway": "gateway",
    "operator": "operator",
    "scaling": "operator",
    "serve": "server",
    "status": "operator",
    "up": "server",
}
"""The extra that a command prefers; any other command takes the first one that has the module."""
SERVER = ("torch", "fastapi", "uvicorn", "zmq", "llguidance", "safetensors", "tokenizers", "huggingface_hub")
"""Modules that an engine and the process in front of it import."""
_DISTRIBUTION_OF = {
    "google": "grpcio-health-checking",  # protobuf comes with it
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "zmq": "pyzmq",
}
"""Distributions by import name, where the two differ by more than a hyphen."""
_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def missing_extra(error: ModuleNotFoundError, command: str) -> InvalidInput | None:
    """Return what to say of `error`, raised by `command`; None = no extra brings the module: a defect."""
    module = error.name or ""
    extras = [extra for extra, brought in _brought() if brought in _distributions(module)]
    if not extras:
        return None
    own = EXTRAS_OF_COMMAND.get(command, "")
    extra = own if own in extras else extras[0]
    # An endpoint picker is an addition to a gateway, which alone can run it.
    wanted = f"{own},{extra}" if own and own != extra else extra
    return InvalidInput(
        f"{command or 'this command'} needs the extra '{extra}', which brings {module.partition('.')[0]}: "
        f"pip install '{OWN}[{wanted}]'"
    )


def need(*modules: str) -> None:
    """Raise `ModuleNotFoundError` for the first of `modules` that is not installed, without an import of any.

    A command that leaves the import to a child process calls it, so that the child is not started in vain.
    """
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _distributions(module: str) -> set[str]:
    """Return the distributions that may bring `module`, by their normalised names."""
    top = module.partition(".")[0]
    name = _DISTRIBUTION_OF.get(top, top)
    # Of a namespace package the distribution is named after a part of it: opentelemetry.sdk.
    return {_normal(name), _normal("-".join(module.split(".")[:2]))}


def _brought() -> Iterator[tuple[str, str]]:
    """Yield (extra, distribution) for every requirement of an extra."""
    # Only a command that fails needs it, and it is slow to import.
    from importlib.metadata import requires

    for text in requires(OWN) or ():
        wish, _, marker = text.partition(";")
        extra, name = _EXTRA.search(marker), _NAME.match(wish)
        if extra and name:
            yield extra[1], _normal(name[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
