"""Who may call: API keys and the admin token, from files that may change under us (rotated secrets).

Read at the start and again when the file's time stamp moves. Compared in constant time; never logged.
"""

import hashlib
import hmac
import os
from pathlib import Path

from mamba_server.api.errors import BadConfiguration, Unauthorized
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


def _digest(key: str) -> bytes:
    # Digests have one length, so comparing them tells nothing about the length of a key.
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()


class KeyFile:
    """One accepted key a line; blank lines and # comments are skipped. Raises BadConfiguration."""

    def __init__(self, path: str, option: str) -> None:
        self._path = Path(path)
        self._option = option
        self._stamp = 0
        self._digests: list[bytes] = []
        try:
            self._load()
        except OSError as error:
            raise BadConfiguration(f"{option}: {path}: {error.strerror}") from error
        except ValueError as error:
            raise BadConfiguration(f"{option}: {path}: {error}") from error

    def _load(self) -> None:
        stamp = os.stat(self._path).st_mtime_ns
        lines = (line.strip() for line in self._path.read_text("utf-8").splitlines())
        digests = [_digest(line) for line in lines if line and not line.startswith("#")]
        if not digests:
            raise ValueError("holds no key; put one a line")
        self._stamp, self._digests = stamp, digests

    def check(self, authorization: str | None) -> None:
        """The value of an Authorization header. Raises Unauthorized."""
        try:
            if os.stat(self._path).st_mtime_ns != self._stamp:
                self._load()
        except (OSError, ValueError) as error:
            log.error(
                "key_file_unreadable", option=self._option, reason=str(error), keeping="the keys read before"
            )
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("no API key was given; send the header 'Authorization: Bearer KEY'")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is not accepted")
