"""Compares files with the checksums that their store states. Called by `ranged_download`."""

import hashlib
from pathlib import Path
from typing import Literal

from mamba_server.model.remote.remote_file import Checksum

Verdict = Literal["same", "different", "unknown"]
_HASHED_AT_ONCE = 1 << 22
_MEBIBYTE = 1 << 20
_MEGABYTE = 1_000_000
_MOST_PART_SIZES = 16
"""Part sizes that are tried; small uploads leave more room for guesses than large ones."""


def verdict(path: Path, checksum: Checksum | None) -> Verdict:
    """Return whether the file has the checksum; "unknown" without a checksum.

    The parts of an upload have an unknown size. Sizes of whole mebibytes and megabytes are tried; if none
    yields the checksum, the result is "unknown", too.
    """
    if checksum is None:
        return "unknown"
    if checksum.algorithm != "md5-of-parts":
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: _hash(checksum.algorithm)).hexdigest()
        return "same" if digest == checksum.digest else "different"
    for part_bytes in _part_sizes(path.stat().st_size, checksum.parts):
        if _md5_of_parts(path, part_bytes) == checksum.digest:
            return "same"
    return "unknown"


def _hash(algorithm: str) -> "hashlib._Hash":
    return hashlib.new(algorithm, usedforsecurity=False)


def _part_sizes(size: int, parts: int) -> list[int]:
    """Return the sizes of parts, in bytes, that split a file of `size` bytes into that many parts."""
    if parts < 2:
        return [max(size, 1)]
    least, most = -(-size // parts), (size - 1) // (parts - 1)
    sizes = [
        unit * count
        for unit in (_MEBIBYTE, _MEGABYTE)
        for count in range(-(-least // unit), most // unit + 1)
    ]
    # Powers of two and their small multiples are what programs upload with.
    return sorted(sizes, key=lambda part_bytes: (part_bytes % (8 * _MEBIBYTE) != 0, part_bytes))[
        :_MOST_PART_SIZES
    ]


def _md5_of_parts(path: Path, part_bytes: int) -> str:
    of_parts = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while True:
            part, left = hashlib.md5(usedforsecurity=False), part_bytes
            while left and (piece := file.read(min(_HASHED_AT_ONCE, left))):
                part.update(piece)
                left -= len(piece)
            if left == part_bytes:
                return of_parts.hexdigest()
            of_parts.update(part.digest())
