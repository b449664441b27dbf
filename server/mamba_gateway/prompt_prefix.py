"""The prefixes of one prompt by which requests are known to share them: digests of token ids at fixed depths.

The depths are the same for every prompt and lie further apart the deeper they are, so that a prompt of any
length has a bounded number of them. Computed in a thread; the digests are the gateway's own, and never
compared with those that engines publish.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RUNGS = ((1024, 64), (8192, 256), (131_072, 2048))
"""(depth, distance) in tokens: distance of prefixes up to that depth; none is deeper than the last."""
BYTES_PER_TOKEN = 4
"""Assumed number of bytes for each token of text that is not tokenized."""
HOME_TOKENS = 128
"""Number of first tokens by which prompts get a home engine that share a prefix no engine has yet."""

TokenIds = NDArray[np.int32]


def _ladder() -> tuple[int, ...]:
    depths: list[int] = []
    for end, apart in RUNGS:
        depths.extend(range((depths[-1] if depths else 0) + apart, end + 1, apart))
    return tuple(depths)


DEPTHS = _ladder()


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """A prompt as routing sees it."""

    token_ids: TokenIds
    salt: str
    digests: tuple[tuple[int, bytes], ...]
    """(depth, digest of the tokens before it), shallow ones first."""
    exact: bool = True
    """Whether the ids are those that the engine computes; else they stand for the text."""
    computed_whole: bool = False
    """Whether log-probabilities of the prompt are returned, so that no engine resumes any of it."""

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int] | TokenIds,
        salt: str = "",
        *,
        exact: bool = True,
        computed_whole: bool = False,
    ) -> "PromptPrefix":
        """Compute the prefixes of a whole prompt. Prompts of different salts share nothing."""
        ids = np.ascontiguousarray(token_ids, np.int32)
        chain = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8)
        digests, begin = list[tuple[int, bytes]](), 0
        for depth in DEPTHS:
            if depth > len(ids):
                break
            chain.update(ids[begin:depth].tobytes())
            digests.append((depth, chain.digest()))
            begin = depth
        return cls(ids, salt, tuple(digests), exact, computed_whole)

    @classmethod
    def of_text(cls, text: bytes, salt: str = "") -> "PromptPrefix":
        """Compute the prefixes of text that cannot be tokenized: each four bytes count as a token."""
        whole = len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
        return cls.of(np.frombuffer(text[:whole], np.int32), salt, exact=False)

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def home(self) -> int | None:
        """Number that prompts with the same first `HOME_TOKENS` have in common; None for shorter ones."""
        return next((int.from_bytes(d) for depth, d in self.digests if depth == HOME_TOKENS), None)


def tokens_of(prompt: "PromptPrefix | None", body_bytes: int) -> float:
    """Return the number of tokens of a prompt, estimated from the size of its body if it was not read."""
    return float(prompt.tokens if prompt is not None and prompt.exact else body_bytes // BYTES_PER_TOKEN)
