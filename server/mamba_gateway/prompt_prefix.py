"""`PromptPrefix`: digests of one prompt's prefixes, by which the gateway notices a shared prefix.

Digests are computed at fixed depths that are the same for all prompts. The distance between two depths grows,
so that a prompt of any length has a bounded number of them. They are computed in a thread, used by this
gateway only, and never compared with the hashes that engines publish.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mamba_prefix.page_chain import PageChain, PageTerms

RUNGS = ((1024, 64), (8192, 256), (131_072, 2048))
"""(depth, distance) in tokens: the distance between digests up to that depth. There are none beyond the last
depth."""
BYTES_PER_TOKEN = 4
"""Assumed number of bytes per token in text that is not tokenized."""
HOME_TOKENS = 128
"""Number of tokens at the beginning of a prompt that determine its home engine, to which prompts go that
share a prefix no engine has cached."""

TokenIds = NDArray[np.int32]


def _ladder() -> tuple[int, ...]:
    depths: list[int] = []
    for end, apart in RUNGS:
        depths.extend(range((depths[-1] if depths else 0) + apart, end + 1, apart))
    return tuple(depths)


DEPTHS = _ladder()
_PAGE = RUNGS[0][1]
"""Tokens of a page: each depth is a multiple of it."""
_PAGES = np.array(DEPTHS) // _PAGE
_CHAIN = PageChain(_PAGE, "prompts of a gateway")


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """Holds what routing needs of a request's prompt: its length, and digests of its prefixes."""

    token_ids: TokenIds
    salt: str
    digests: tuple[tuple[int, int], ...]
    """(depth in tokens, digest of the tokens before it), by increasing depth."""
    exact: bool = True
    """Whether the token ids are those that the engine will compute; otherwise they represent the bytes of the
    text."""
    computed_whole: bool = False
    """Whether the client wants log-probabilities of the prompt, so that an engine has to compute all of
    it."""
    unread_tokens: int = 0
    """Estimated number of tokens behind `token_ids`, where only the beginning of the prompt was read in time;
    0 = all of it was read."""
    terms: PageTerms | None = field(default=None, compare=False, repr=False)
    """Terms of the pages of `token_ids`, as far as they are computed; None = they are not kept."""

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int] | TokenIds,
        salt: str = "",
        *,
        exact: bool = True,
        computed_whole: bool = False,
        unread_tokens: int = 0,
        terms: PageTerms | None = None,
    ) -> "PromptPrefix":
        """Compute the digests of a prompt. Prompts with different salts share no prefix.

        The keyword arguments become the fields of the result with the same names.
        """
        ids = np.ascontiguousarray(token_ids, np.int32)
        terms = terms or PageTerms(ids)
        hashes = _CHAIN.hashes_of_terms(terms.of(_CHAIN)[: _PAGES[-1]], salt)
        pages = _PAGES[: int(np.searchsorted(_PAGES, len(hashes), "right"))]
        digests = tuple(zip(DEPTHS, hashes[pages - 1].tolist(), strict=False))
        return cls(ids, salt, digests, exact, computed_whole, unread_tokens, terms)

    @classmethod
    def of_text(cls, text: bytes, salt: str = "") -> "PromptPrefix":
        """Compute the digests of text that cannot be tokenized: four bytes count as one token."""
        whole = len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
        return cls.of(np.frombuffer(text[:whole], np.int32), salt, exact=False)

    @property
    def tokens(self) -> int:
        """Number of tokens of the prompt, estimated where only its beginning was read."""
        return len(self.token_ids) + self.unread_tokens

    @property
    def home(self) -> int | None:
        """Hash of the first `HOME_TOKENS` tokens, which selects the home engine; None for shorter prompts."""
        return next((digest for depth, digest in self.digests if depth == HOME_TOKENS), None)


def tokens_of(prompt: "PromptPrefix | None", body_bytes: int) -> float:
    """Return the number of prompt tokens; without the prompt, estimate it by the size of the body."""
    return float(prompt.tokens if prompt is not None and prompt.exact else body_bytes // BYTES_PER_TOKEN)
