"""One chained hash per page of a prompt: hash i stands for all tokens up to the end of page i.

Engines publish their checkpoints under these hashes and gateways look prompts up by them, so they are the
same on every machine and for ever: 64-bit arithmetic alone. Two prompts with one hash cost a recomputation,
no more: the engine compares tokens.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Arrays of no dimension, and results put where they stay: half of the time of an operation on 64 pages is
# what numpy does before and after it.
_FIRST, _SECOND = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S27, _S30, _S31 = np.array(27, np.uint64), np.array(30, np.uint64), np.array(31, np.uint64)
_ONE = np.uint64(1)
_ALL = 0xFFFF_FFFF_FFFF_FFFF


def _places(at: int, end: int) -> Hashes:
    """What stands for the places of the pages in (at, end]."""
    return np.arange(at + 1, end + 1, dtype=np.uint64) * GOLDEN


_PLACES = _places(0, 1024)
"""Of most pages."""


def mixed(values: Hashes) -> Hashes:
    """The finalizer of splitmix64 of each value, in place."""
    shifted = np.empty_like(values)
    np.bitwise_xor(values, np.right_shift(values, _S30, shifted), values)
    np.multiply(values, _FIRST, values)
    np.bitwise_xor(values, np.right_shift(values, _S27, shifted), values)
    np.multiply(values, _SECOND, values)
    np.bitwise_xor(values, np.right_shift(values, _S31, shifted), values)
    return values


def mixed_one(value: int) -> int:
    """The same of one number, for which Python's own arithmetic is quicker than an array."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _ALL
    return value ^ (value >> 31)


@lru_cache(64)
def _start(fingerprint: str, salt: str, page_size: int) -> int:
    key = blake2b(digest_size=8)
    for part in (fingerprint, salt, str(page_size)):
        raw = part.encode("utf-8", "surrogatepass")
        key.update(len(raw).to_bytes(4, "little") + raw)
    return int.from_bytes(key.digest(), "little")


class PageMixer:
    """64 bits of each whole page, wherever it stands."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        # The splitmix64 stream, made odd so that no bit of a token is lost.
        self._weights = mixed(np.arange(1, page_size + 1, dtype=np.uint64) * GOLDEN) | _ONE

    def pages(self, token_ids: Tokens) -> Hashes:
        """uint64[whole pages of `token_ids`]."""
        count = len(token_ids) // self.page_size
        shaped = token_ids[: count * self.page_size].reshape(count, self.page_size)
        return mixed(shaped.astype(np.uint64) @ self._weights)


class PageChain:
    """The hashes of one model: `fingerprint` tells models apart whose states cannot stand for each other."""

    def __init__(self, page_size: int, fingerprint: str) -> None:
        self.page_size = page_size
        self.fingerprint = fingerprint
        self._mixer = PageMixer(page_size)

    def start(self, salt: str) -> int:
        """The running sum before the first page, for prompts under `salt`."""
        return _start(self.fingerprint, salt, self.page_size)

    def extend(self, running: int, pages: int, token_ids: Tokens) -> int:
        """The running sum after the whole pages of `token_ids`, which follow `pages` pages summed already."""
        return (running + int(self._placed(token_ids, pages).sum(dtype=np.uint64))) & _ALL

    def hash_of(self, running: int) -> int:
        """The hash of the prefix whose running sum this is; never 0."""
        return mixed_one(running) or 1

    def hashes(self, token_ids: Tokens, salt: str) -> Hashes:
        """uint64[whole pages of `token_ids`], each never 0."""
        return self.hashes_after(self.start(salt), 0, token_ids)

    def hashes_after(self, running: int, pages: int, token_ids: Tokens) -> Hashes:
        """The same of the prefixes that end with the pages of `token_ids`, which follow `pages` pages whose
        running sum is `running`."""
        return self.hashes_of(self.sums_after(running, pages, token_ids))

    def sums_after(self, running: int, pages: int, token_ids: Tokens) -> Hashes:
        """The running sums behind these hashes: uint64[whole pages of `token_ids`]."""
        sums = np.add.accumulate(self._placed(token_ids, pages))
        sums += np.uint64(running)
        return sums

    @staticmethod
    def hashes_of(sums: Hashes) -> Hashes:
        """The hashes of the prefixes whose running sums these are, in their place."""
        return _final(sums)

    def _placed(self, token_ids: Tokens, at: int) -> Hashes:
        """What each page adds where it stands: the same page elsewhere adds something else."""
        pages = self._mixer.pages(token_ids)
        end = at + len(pages)
        pages += _PLACES[at:end] if end <= len(_PLACES) else _places(at, end)
        return mixed(pages)


def _final(running: Hashes) -> Hashes:
    hashes = mixed(running)
    # 0 is an empty place in a table of hashes.
    if not hashes.all():
        hashes[hashes == 0] = _ONE
    return hashes
