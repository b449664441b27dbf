"""API keys and admin tokens, read from files that may change at any time (rotated secrets).

A file is read at the start and again when its time stamp, size or inode changes. A file that is empty or
missing may be in the middle of a rotation, so the previous keys stay valid for a moment; after that every
request is refused until the file holds keys again. Keys are compared in constant time and never logged.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mamba_api.names import API_KEY_NAME
from mamba_edge.errors import Unauthorized
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


GRACE_SECONDS = 1.0
"""Seconds for which the previous keys stay valid while their file is empty, unreadable or missing."""


class KeyFileError(ValueError):
    """A file of keys that is unreadable, empty or has an invalid name; the message names option and file."""


def _digest(key: bytes) -> bytes:
    # All digests have one length, so comparing them reveals nothing about the length of a key.
    return hashlib.sha256(key).digest()


def _name(place: int, *words: bytes) -> str:
    if not words:
        return f"key-{place}"
    name = words[0].decode("ascii", "replace")
    if len(words) > 1 or not API_KEY_NAME.fullmatch(name):
        # The message quotes nothing of the line, which may be a part of a key.
        raise ValueError(
            f"key {place} is followed by an invalid name; a line is KEY or KEY NAME, and a name has at most "
            "64 letters, digits and ._-"
        )
    return name


def credential_of(header_values: Mapping[bytes, bytes]) -> bytes | None:
    """Return the value of the Authorization header, or one made of `x-api-key` if there is none."""
    authorization = header_values.get(b"authorization")
    key = header_values.get(b"x-api-key")
    return b"Bearer " + key if authorization is None and key else authorization


class KeyFile:
    """The accepted keys of one file: one key a line, optionally followed by a blank and the key's name.

    Blank lines and # comments are skipped. Keys with the same name count as one client: the old and the new
    key of a rotation. A key without a name is named after its position, `key-1` for the first. The
    constructor raises KeyFileError.
    """

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
        """First key of the file, which this process sends to servers that need one; empty without keys."""
        self._refresh()
        return self._keys[0] if self._keys else b""

    @property
    def names(self) -> frozenset[str]:
        """Names of all accepted keys."""
        self._refresh()
        return frozenset(self._names)

    def check(self, authorization: str | bytes | None) -> str:
        """Return the name of the key in the value of an Authorization header, or raise Unauthorized."""
        if isinstance(authorization, str):
            authorization = authorization.encode("latin-1", errors="replace")  # the original bytes
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise Unauthorized(
                "no API key was given; send the header 'Authorization: Bearer KEY', or 'x-api-key: KEY'"
            )
        self._refresh()
        digest = _digest(key.strip())
        # Every key is compared, so that timing does not reveal which one is similar.
        matches = [hmac.compare_digest(digest, accepted) for accepted in self._digests]
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
            # The file may have broken long before this request, if none has come since.
            self._broken_since = min(now, self._changed_at())
        if complaint != self._complaint:  # logged once, not with every request
            self._complaint = complaint
            log.error(
                "key_file_unreadable",
                option=self._option,
                reason=complaint,
                remedy=f"restore the keys: after {GRACE_SECONDS:g} s every request is refused",
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
            raise ValueError("holds no key; write one key per line")
        names = tuple(_name(place, *rest) for place, (_, *rest) in enumerate(words, 1))
        self._keys, self._names = tuple(key for key, *_ in words), names
        self._digests = tuple(_digest(key) for key in self._keys)
        self._stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
