"""API keys: one accepted key a line of a file that may change while the gateway runs (a rotated secret).

The ASGI endpoint asks; an unreadable file after the start keeps the keys that were read last.
"""

import hmac
from pathlib import Path

from mamba_gateway.errors import InvalidApiKey
from mamba_gateway.headers import RawHeaders, find


class KeyFile:
    """Keys of one file, read again when its modification time or inode changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: tuple[bytes, ...] = ()
        self._load()

    @property
    def first(self) -> bytes:
        """The key the gateway itself shows to engines that ask for one."""
        self._refresh()
        return self._keys[0]

    def check(self, headers: RawHeaders) -> None:
        """Raise `InvalidApiKey` unless the request carries an accepted key as a bearer token."""
        scheme, _, given = (find(headers, b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not given.strip():
            raise InvalidApiKey("no API key: send it as 'Authorization: Bearer KEY'")
        self._refresh()
        # Every key is compared, in constant time, so that timing says nothing about any of them.
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        if not any(matches):
            raise InvalidApiKey("the API key is not accepted")

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._load()
        except (OSError, ValueError):
            return

    def _load(self) -> None:
        stat = self._path.stat()
        lines = self._path.read_bytes().splitlines()
        keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith(b"#"))
        if not keys:
            raise ValueError(f"{self._path}: no API key in it; put one key on each line")
        self._keys, self._stamp = keys, (stat.st_mtime_ns, stat.st_ino)
