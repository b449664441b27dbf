"""Writes kubeconfig files that stand alone: the credentials are inside. Pure but for the last step."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testcluster.pki import Certificate

CONTEXT = "test"


@dataclass(frozen=True)
class Access:
    """Credentials and address with which a client reaches an API server; bytes are PEM."""

    server: str
    authority: bytes
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    """Bearer token; used instead of certificate and key where it is not empty."""


def access(server: str, authority: Path, client: Certificate | str) -> Access:
    """Read the PEM files of one client, which has a certificate or a bearer token."""
    if isinstance(client, str):
        return Access(server, authority.read_bytes(), token=client)
    return Access(server, authority.read_bytes(), client.certificate.read_bytes(), client.key.read_bytes())


def document(given: Access) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, one user and one context, all called `test`."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": given.server, "certificate-authority-data": encoded(given.authority)}
    user = {
        "client-certificate-data": encoded(given.certificate),
        "client-key-data": encoded(given.key),
    }
    if given.token:
        user = {"token": given.token}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }


def write(path: Path, given: Access) -> Path:
    """Write the file, readable by its owner only: it holds a private key or a token."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document(given), sort_keys=False))
    return path
