"""The prefixes of one prompt by which requests are known to share them: digests of token ids at fixed depths.

The depths are the same for every prompt and lie further apart the deeper they are, so that a prompt of any
length has a bounded number of them. Made beside the event loop; of the gateway's own, never compared with
what engines publish.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RUNGS = ((1024, 64), (8192, 256), (131_072, 2048))
"""(depth, distance): up to that depth the prefixes are so many tokens apart; none is deeper than the last."""
BYTES_PER_TOKEN = 4
"""Of text that is not tokenized, about."""
HOME_TOKENS = 128
"""So many first tokens say where prompts go that share what no engine has yet."""

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
    """The ids are those that the engine makes. Else they stand for its text and mean nothing to others."""
    computed_whole: bool = False
    """Its own log-probabilities are asked for, so that no engine resumes any of it."""

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int] | TokenIds,
        salt: str = "",
        *,
        exact: bool = True,
        computed_whole: bool = False,
    ) -> "PromptPrefix":
        """Of the whole prompt. Prompts of different salts share nothing."""
        ids = np.ascontiguousarray(token_ids, np.int32)
        chain = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8)
        digests, done = list[tuple[int, bytes]](), 0
        for depth in DEPTHS:
            if depth > len(ids):
                break
            chain.update(ids[done:depth].tobytes())
            digests.append((depth, chain.digest()))
            done = depth
        return cls(ids, salt, tuple(digests), exact, computed_whole)

    @classmethod
    def of_text(cls, text: bytes, salt: str = "") -> "PromptPrefix":
        """Of text that nobody can tokenize: each four bytes are taken for a token."""
        whole = len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
        return cls.of(np.frombuffer(text[:whole], np.int32), salt, exact=False)

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def home(self) -> int | None:
        """A number that prompts with the same first `HOME_TOKENS` have in common; None for shorter ones."""
        return next((int.from_bytes(d) for depth, d in self.digests if depth == HOME_TOKENS), None)


def tokens_of(prompt: "PromptPrefix | None", body_bytes: int) -> float:
    """Tokens of a prompt: as it was read, else by the size of its body."""
    return float(prompt.tokens if prompt is not None and prompt.exact else body_bytes // BYTES_PER_TOKEN)
