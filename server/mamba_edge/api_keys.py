"""Who may call: API keys and admin tokens, from files that may change under us (rotated secrets).

Read at the start and again when the file's time stamp or inode moves; a file that breaks later keeps the keys
that were read last. Compared in constant time; never logged.
"""

import hashlib
import hmac
from pathlib import Path

from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from mamba_edge.errors import Unauthorized
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


class KeyFileError(ValueError):
    """The file cannot be read or holds no key; the message names option and file."""


def _digest(key: bytes) -> bytes:
    # Digests have one length, so comparing them tells nothing about the length of a key.
    return hashlib.sha256(key).digest()


class KeyFile:
    """One accepted key a line; blank lines and # comments are skipped. Raises KeyFileError."""

    def __init__(self, path: str | Path, option: str) -> None:
        self._path = Path(path)
        self._option = option
        self._stamp: tuple[int, int] | None = None
        self._keys: tuple[bytes, ...] = ()
        self._digests: tuple[bytes, ...] = ()
        self._complaint: str | None = None
        try:
            self._load()
        except OSError as error:
            raise KeyFileError(f"{option}: {path}: {error.strerror}") from error
        except ValueError as error:
            raise KeyFileError(f"{option}: {path}: {error}") from error

    @property
    def first(self) -> bytes:
        """The key that this process itself shows to a server which asks for one."""
        self._refresh()
        return self._keys[0]

    def check(self, authorization: str | bytes | None) -> None:
        """The value of an Authorization header. Raises Unauthorized."""
        if isinstance(authorization, str):
            authorization = authorization.encode("latin-1", errors="replace")  # the bytes that came
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise Unauthorized("no API key was given; send the header 'Authorization: Bearer KEY'")
        self._refresh()
        given = _digest(key.strip())
        # Every key is compared, so that timing says nothing about which one came close.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise Unauthorized("the API key is not accepted")

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._load()
            self._complaint = None
        except (OSError, ValueError) as error:
            if str(error) != self._complaint:  # once, not with every request
                self._complaint = str(error)
                log.error(
                    "key_file_unreadable",
                    option=self._option,
                    reason=self._complaint,
                    keeping="the keys read before",
                )

    def _load(self) -> None:
        stat = self._path.stat()
        lines = (line.strip() for line in self._path.read_bytes().splitlines())
        keys = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not keys:
            raise ValueError("holds no key; put one a line")
        self._keys, self._digests = keys, tuple(_digest(key) for key in keys)
        self._stamp = (stat.st_mtime_ns, stat.st_ino)


class KeyGuard(HTTPBearer):
    """The security scheme of routes that need a key. Without a key file it lets everybody pass."""

    def __init__(self, keys: KeyFile | None, description: str) -> None:
        super().__init__(scheme_name="bearer", description=description, auto_error=False)
        self._keys = keys

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Raises Unauthorized. A route that takes a body asks before it reads; FastAPI asks again."""
        if self._keys is not None and "authorized" not in request.scope:
            self._keys.check(request.headers.get("authorization"))
            request.scope["authorized"] = True
        return None
