"""`missing_extra`: the error for a module that only an extra of this distribution installs.

The extras and their requirements are read from the metadata of the installed distribution. Called by `main`
for every command.
"""

import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from mamba_cli.errors import InvalidInput

OWN = "mambaserve"
EXTRAS_OF_COMMAND = {
    "mambaserve.LLM": "server",
    "mambaserve.lm_eval": "server",
    "download": "server",
    "gateway": "gateway",
    "list": "server",
    "operator": "operator",
    "pull": "server",
    "run": "server",
    "scaling": "operator",
    "serve": "server",
    "status": "operator",
    "up": "server",
}
"""Extra of a command, by the command's name. For other commands, messages name the first extra that installs
the module."""
SERVER = ("torch", "fastapi", "uvicorn", "zmq", "llguidance", "safetensors", "tokenizers", "huggingface_hub")
"""Modules that an engine and its API server import."""
_DISTRIBUTION_OF = {
    "google": "grpcio-health-checking",  # protobuf comes with it
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "zmq": "pyzmq",
}
"""Distribution by the name under which it is imported, where the two differ by more than a hyphen."""
_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def missing_extra(error: ModuleNotFoundError, command: str) -> InvalidInput | None:
    """Return the error for the import error of `command`; None = no extra installs the module."""
    module = error.name or ""
    extras = [extra for extra, distribution in _requirements() if distribution in _distributions(module)]
    if not extras:
        return None
    own = EXTRAS_OF_COMMAND.get(command, "")
    extra = own if own in extras else extras[0]
    # An endpoint picker runs only in a gateway, so both extras are needed.
    names = f"{own},{extra}" if own and own != extra else extra
    return InvalidInput(
        f"{command or 'this command'} needs the extra '{extra}', which installs {module.partition('.')[0]}: "
        f"{install(names)}"
    )


def install(extras: str) -> str:
    """Return the command that installs extras of this distribution from where it was installed.

    Installers record the path of a local wheel or checkout: extras can be installed from it even if no
    package index has the project. They also record their own name, and none of them can change an
    environment that another one made.
    """
    # This module is slow to import, and only a failing command needs it.
    import json
    from importlib.metadata import distribution
    from urllib.parse import unquote, urlsplit

    installed = distribution(OWN)
    record = installed.read_text("direct_url.json")
    address = urlsplit(json.loads(record)["url"]) if record else None
    source = OWN
    if address is not None and address.scheme == "file" and os.path.exists(unquote(address.path)):
        source = unquote(address.path)
    return f"{_installer(installed.read_text('INSTALLER') or '')} '{source}[{extras}]'"


def _installer(name: str) -> str:
    """Return the command that installs into this environment, without the names of packages.

    `name` is the name of the program that installed the distribution, as the program recorded it.
    """
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return "uv tool install"
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return "pipx install --force"
    return "uv pip install" if name.strip() == "uv" else "pip install"


def need(*modules: str) -> None:
    """Raise `ModuleNotFoundError` for the first of `modules` that is not installed, without importing any.

    Commands whose child processes import the modules call it before they start a child.
    """
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _distributions(module: str) -> set[str]:
    """Return the normalised names of the distributions that can contain `module`."""
    top = module.partition(".")[0]
    name = _DISTRIBUTION_OF.get(top, top)
    # A distribution in a namespace package is named after its part, such as opentelemetry.sdk.
    return {_normal(name), _normal("-".join(module.split(".")[:2]))}


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield (extra, distribution) for every requirement of an extra."""
    # This module is slow to import, and only a failing command needs it.
    from importlib.metadata import requires

    for text in requires(OWN) or ():
        requirement, _, marker = text.partition(";")
        extra, name = _EXTRA.search(marker), _NAME.match(requirement)
        if extra and name:
            yield extra[1], _normal(name[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
