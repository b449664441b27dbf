"""Who may call: API keys and admin tokens, from files that may change under us (rotated secrets).

Read at the start and again when the file's time stamp, size or inode moves. A file that is empty or gone may
be half of a rotation, so the keys that were read last stay for a moment; then nobody is let in until it holds
keys again. Compared in constant time; never logged.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from pathlib import Path

from mamba_edge.errors import Unauthorized
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Allowed names of API keys. A name appears in metrics and logs, where the key itself never does."""
GRACE_SECONDS = 1.0
"""How long the keys of a file that is empty, unreadable or gone are still accepted."""


class KeyFileError(ValueError):
    """The file cannot be read or holds no key; the message names option and file."""


def _digest(key: bytes) -> bytes:
    # Digests have one length, so comparing them tells nothing about the length of a key.
    return hashlib.sha256(key).digest()


def _name(place: int, *words: bytes) -> str:
    if not words:
        return f"key-{place}"
    name = words[0].decode("ascii", "replace")
    if len(words) > 1 or not KEY_NAME.fullmatch(name):
        # Not a word of the line itself: it may be a part of a key.
        raise ValueError(
            f"key {place} is followed by what is no name; a line is KEY or KEY NAME, the name of at most 64 "
            "letters, digits and ._-"
        )
    return name


class KeyFile:
    """One accepted key a line, behind it, after a blank, its name if it has one; blank lines and # comments
    are skipped. Keys of one name are one to whoever counts: the old and the new one of a rotation. A key
    without a name is called by its place, `key-1` for the first. Raises KeyFileError."""

    def __init__(self, path: str | Path, option: str, clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path)
        self._option = option
        self._clock = clock
        self._broken_since: float | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._keys: tuple[bytes, ...] = ()
        self._digests: tuple[bytes, ...] = ()
        self._names: tuple[str, ...] = ()
        self._complaint: str | None = None
        try:
            self._load()
        except OSError as error:
            raise KeyFileError(f"{option}: {path}: {error.strerror}") from error
        except ValueError as error:
            raise KeyFileError(f"{option}: {path}: {error}") from error

    @property
    def first(self) -> bytes:
        """The key that this process itself shows to a server which asks for one; empty when there is none."""
        self._refresh()
        return self._keys[0] if self._keys else b""

    @property
    def names(self) -> frozenset[str]:
        """Names of the keys that are accepted."""
        self._refresh()
        return frozenset(self._names)

    def check(self, authorization: str | bytes | None) -> str:
        """The name of the key in the value of an Authorization header. Raises Unauthorized."""
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
        return self._names[matches.index(True)]

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino, stat.st_size) != self._stamp:
                self._load()
            self._complaint = self._broken_since = None
        except (OSError, ValueError) as error:
            self._on_broken(str(error))

    def _on_broken(self, complaint: str) -> None:
        now = self._clock()
        if self._broken_since is None:
            # No request may have come since: then the moment was long ago.
            self._broken_since = min(now, self._changed_at())
        if complaint != self._complaint:  # once, not with every request
            self._complaint = complaint
            log.error(
                "key_file_unreadable",
                option=self._option,
                reason=complaint,
                remedy=f"put the keys back: after {GRACE_SECONDS:g} s everybody is refused",
            )
        if now - self._broken_since >= GRACE_SECONDS and self._keys:
            log.error("keys_revoked", option=self._option, reason=complaint)
            self._keys, self._digests, self._names, self._stamp = (), (), (), None

    def _changed_at(self) -> float:
        for path in (self._path, self._path.parent):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return self._clock()

    def _load(self) -> None:
        stat = self._path.stat()
        lines = (line.strip() for line in self._path.read_bytes().splitlines())
        words = tuple(line.split() for line in lines if line and not line.startswith(b"#"))
        if not words:
            raise ValueError("holds no key; put one a line")
        names = tuple(_name(place, *named) for place, (_, *named) in enumerate(words, 1))
        self._keys, self._names = tuple(key for key, *_ in words), names
        self._digests = tuple(_digest(key) for key in self._keys)
        self._stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
