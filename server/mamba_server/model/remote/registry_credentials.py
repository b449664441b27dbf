"""Credentials for registries, in the form in which container tools keep them. Called by `registry_store`."""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "DOCKER_AUTH_CONFIG"
"""Variable with the content of a Docker config.json, as in a Secret for images."""
_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io", "https://index.docker.io/v1/")


def basic_credentials(registry: str) -> str | None:
    """Return user and password for `registry` in base64, as Basic authentication sends them; None = none.

    Reads DOCKER_AUTH_CONFIG, the file of REGISTRY_AUTH_FILE, and config.json of DOCKER_CONFIG or ~/.docker.
    """
    names = (
        _DOCKER_HUB if registry in _DOCKER_HUB else (registry, f"https://{registry}", f"http://{registry}")
    )
    for document in _documents():
        accounts: Any = document.get("auths")
        if not isinstance(accounts, Mapping):
            continue
        for name in names:
            if (encoded := _encoded(accounts.get(name))) is not None:
                return encoded
    return None


def _documents() -> list[Mapping[str, Any]]:
    texts = [os.environ.get(VARIABLE) or ""]
    folder = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker")
    files = [Path(named)] if (named := os.environ.get("REGISTRY_AUTH_FILE")) else []
    for path in (*files, folder / "config.json"):
        try:
            texts.append(path.expanduser().read_text(encoding="utf-8"))
        except (OSError, RuntimeError, UnicodeDecodeError):
            continue
    documents: list[Mapping[str, Any]] = []
    for text in texts:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, Mapping):
            documents.append(document)
    return documents


def _encoded(account: Any) -> str | None:
    if not isinstance(account, Mapping):
        return None
    if isinstance(encoded := account.get("auth"), str) and encoded:
        try:
            base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return None
        return encoded
    user, password = account.get("username"), account.get("password")
    if isinstance(user, str) and isinstance(password, str):
        return base64.b64encode(f"{user}:{password}".encode()).decode()
    return None
