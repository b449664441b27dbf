"""`PrefixNames`: the keys under which a store finds the page-aligned prefixes of one prompt.

A chain hash finds a record. A digest then proves that the record belongs to the same tokens: chain hashes
have only 64 bits and are not secret, so that somebody could construct two prompts with the same one.
"""

from hashlib import blake2b

import numpy as np

from mamba_prefix.page_chain import PageChain, Tokens
from mamba_tier.errors import SizeMismatch

DIGEST_BYTES = 16


class PrefixNames:
    """Computes the keys and digests under which prefixes of `token_ids` are stored.

    They differ for each `salt`. `block_tokens` is the number of tokens of a block of pages.
    """

    def __init__(self, chain: PageChain, block_tokens: int, token_ids: Tokens, salt: str) -> None:
        self.tokens = len(token_ids) // chain.page_size * chain.page_size
        """Number of tokens in whole pages."""
        ids: Tokens = np.ascontiguousarray(token_ids[: self.tokens], "<i4")
        self._page_size = chain.page_size
        self._block_tokens = block_tokens
        self._raw = memoryview(ids.tobytes())
        self._keys: list[int] = chain.hashes(ids, salt).tolist()
        start = blake2b(digest_size=DIGEST_BYTES)
        for part in (chain.fingerprint, salt, str(chain.page_size)):
            raw = part.encode("utf-8", "surrogatepass")
            start.update(len(raw).to_bytes(8, "little") + raw)
        self._at_blocks = [start]

    def key(self, depth: int) -> int:
        """Return the chain hash of the first `depth` tokens; `depth` is at least one page."""
        return self._keys[depth // self._page_size - 1]

    def digest(self, depth: int) -> bytes:
        """Return the cryptographic digest of the salt and the first `depth` tokens."""
        block, bytes_per_block = depth // self._block_tokens, 4 * self._block_tokens
        while len(self._at_blocks) <= block:
            start = (len(self._at_blocks) - 1) * bytes_per_block
            following = self._at_blocks[-1].copy()
            following.update(self._raw[start : start + bytes_per_block])
            self._at_blocks.append(following)
        last = self._at_blocks[block].copy()
        last.update(self._raw[block * bytes_per_block : 4 * depth])
        return last.digest()


def whole_pages(tokens: int, page_size: int, what: str) -> None:
    """Check that `tokens` is a multiple of the page size.

    Raises SizeMismatch, whose message calls the tokens `what`.
    """
    if tokens < 0 or tokens % page_size:
        raise SizeMismatch(f"{what} is {tokens} tokens: give a multiple of the page size, {page_size}")
