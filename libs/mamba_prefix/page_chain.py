"""One chained hash per page of a prompt: hash i stands for all tokens up to the end of page i.

A running sum adds up one term for each page so far; the hash of a prefix is made of it. Engines publish their
checkpoints under these hashes and gateways look prompts up by them, so the hashes are the same on every
machine and in every release: only 64-bit arithmetic is used. Two prompts with the same hash cost no more than
a recomputation: the engine compares tokens.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Arrays without dimensions, and operations in place: half of the time of an operation on 64 pages is numpy's
# work before and after it.
_FIRST, _SECOND = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S27, _S30, _S31 = np.array(27, np.uint64), np.array(30, np.uint64), np.array(31, np.uint64)
_ONE = np.uint64(1)
PAGES_AT_ONCE = 256
"""Pages of a long prompt that are widened to 64 bits at once, so that they stay in the processor's cache."""
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def _places(first: int, end: int) -> Hashes:
    """Return the weights of the pages (first, end], by which their position enters a hash."""
    return np.arange(first + 1, end + 1, dtype=np.uint64) * GOLDEN


_PLACES = _places(0, 1024)
"""Weights of the first 1,024 pages, enough for most prompts."""


def mixed(values: Hashes) -> Hashes:
    """Apply the finalizer of splitmix64 to each value, in place."""
    shifted = np.empty_like(values)
    np.bitwise_xor(values, np.right_shift(values, _S30, shifted), values)
    np.multiply(values, _FIRST, values)
    np.bitwise_xor(values, np.right_shift(values, _S27, shifted), values)
    np.multiply(values, _SECOND, values)
    np.bitwise_xor(values, np.right_shift(values, _S31, shifted), values)
    return values


def mixed_one(value: int) -> int:
    """Return `mixed` of one number, for which Python's own arithmetic is faster than an array."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(64)
def _start(fingerprint: str, salt: str, page_size: int) -> int:
    key = blake2b(digest_size=8)
    for part in (fingerprint, salt, str(page_size)):
        raw = part.encode("utf-8", "surrogatepass")
        key.update(len(raw).to_bytes(4, "little") + raw)
    return int.from_bytes(key.digest(), "little")


class PageMixer:
    """Hashes whole pages to 64 bits each, independently of their position."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        # The splitmix64 stream, with odd numbers so that no bit of a token is lost.
        self._weights = mixed(np.arange(1, page_size + 1, dtype=np.uint64) * GOLDEN) | _ONE

    def pages(self, token_ids: Tokens) -> Hashes:
        """Return the hashes of the pages: uint64[whole pages of `token_ids`]."""
        count = len(token_ids) // self.page_size
        shaped = token_ids[: count * self.page_size].reshape(count, self.page_size)
        if count <= PAGES_AT_ONCE:
            return mixed(shaped.astype(np.uint64) @ self._weights)
        sums = np.empty(count, np.uint64)
        for first in range(0, count, PAGES_AT_ONCE):
            part = shaped[first : first + PAGES_AT_ONCE].astype(np.uint64)
            np.matmul(part, self._weights, sums[first : first + PAGES_AT_ONCE])
        return mixed(sums)


class PageChain:
    """Computes the hashes of the prefixes of prompts, page by page, for one model.

    `fingerprint` separates models whose states cannot replace each other.
    """

    def __init__(self, page_size: int, fingerprint: str) -> None:
        self.page_size = page_size
        self.fingerprint = fingerprint
        self._mixer = PageMixer(page_size)

    def start(self, salt: str) -> int:
        """Return the running sum before the first page, for prompts with the salt `salt`."""
        return _start(self.fingerprint, salt, self.page_size)

    def extend(self, running: int, pages: int, token_ids: Tokens) -> int:
        """Return the running sum after the whole pages of `token_ids`.

        `running` is the sum after the `pages` pages before them.
        """
        return (running + int(self.terms(token_ids, pages).sum(dtype=np.uint64))) & _MASK

    def hash_of(self, running: int) -> int:
        """Return the hash of the prefix with this running sum; never 0."""
        return mixed_one(running) or 1

    def hashes(self, token_ids: Tokens, salt: str) -> Hashes:
        """Return the hashes of all prefixes: uint64[whole pages of `token_ids`], each never 0."""
        return self.hashes_after(self.start(salt), 0, token_ids)

    def hashes_of_terms(self, terms: Hashes, salt: str) -> Hashes:
        """Return the hashes of all prefixes of a prompt whose first pages have the terms `terms`."""
        return self.hashes_of(_summed(terms, self.start(salt)))

    def hashes_after(self, running: int, pages: int, token_ids: Tokens) -> Hashes:
        """Return the hashes of the prefixes that end with the pages of `token_ids`.

        The `pages` pages before them have the running sum `running`.
        """
        return self.hashes_of(self.sums_after(running, pages, token_ids))

    def sums_after(self, running: int, pages: int, token_ids: Tokens) -> Hashes:
        """Return the running sums that `hashes_after` makes hashes of: uint64[whole pages of `token_ids`]."""
        return _summed(self.terms(token_ids, pages), running)

    @staticmethod
    def hashes_of(sums: Hashes) -> Hashes:
        """Turn running sums into the hashes of their prefixes, in place."""
        return _final(sums)

    def terms(self, token_ids: Tokens, first: int) -> Hashes:
        """Return the terms of the whole pages of `token_ids`, of which the first is page `first` of a prompt.

        A page has another term at another position, and the same one in every model.
        """
        pages = self._mixer.pages(token_ids)
        end = first + len(pages)
        pages += _PLACES[first:end] if end <= len(_PLACES) else _places(first, end)
        return mixed(pages)


class PageTerms:
    """The terms of one prompt's pages, computed once for each size of page; several threads may use it.

    `beginnings` are terms of the first pages, by the size of a page in tokens, which are not computed again.
    """

    __slots__ = ("_beginnings", "_terms", "_token_ids")

    def __init__(self, token_ids: Tokens, beginnings: Mapping[int, Hashes] = MappingProxyType({})) -> None:
        self._token_ids, self._beginnings = token_ids, beginnings
        self._terms: dict[int, Hashes] = {}

    def of_first(self, tokens: int) -> dict[int, Hashes]:
        """Return the known terms of the pages within the first `tokens` tokens, by the size of a page."""
        by_size = {**self._beginnings, **self._terms}
        return {size: terms[: tokens // size] for size, terms in by_size.items()}

    def of(self, chain: PageChain) -> Hashes:
        """Return the terms of the whole pages of `chain`; not to be changed."""
        size = chain.page_size
        terms = self._terms.get(size)
        if terms is None:
            beginning = self._beginnings.get(size, _NO_TERMS)
            rest = chain.terms(self._token_ids[len(beginning) * size :], len(beginning))
            terms = self._terms[size] = np.concatenate((beginning, rest))
        return terms


_NO_TERMS = np.zeros(0, np.uint64)


def _summed(terms: Hashes, running: int) -> Hashes:
    """Return the running sum after each page of `terms`; `running` is the sum before the first one."""
    sums = np.add.accumulate(terms)
    sums += np.uint64(running)
    return sums


def _final(running: Hashes) -> Hashes:
    hashes = mixed(running)
    # 0 marks an empty place in a table of hashes.
    if not hashes.all():
        hashes[hashes == 0] = _ONE
    return hashes
