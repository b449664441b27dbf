"""Cache of token ids for texts with a common beginning: each turn of a conversation adds little new text.

For the tokenizer, a special token ends the text before it. Texts are therefore cut before each special token,
and pieces that were encoded before are not encoded again. Used by gateways, which see all turns of a
conversation.
"""

import re
import threading
from collections import OrderedDict

from mamba_text.tokenizer import Tokenizer

MOST_CHARS = 8 << 20
"""Total characters of the cached pieces; the least recently used are removed first."""
LEAST_CHARS = 64
"""Characters of a piece below which encoding is faster than a lookup."""


class SegmentCache:
    """The cache of one tokenizer; several threads may use it."""

    def __init__(self, tokenizer: Tokenizer, most_chars: int = MOST_CHARS) -> None:
        self._tokenizer, self._most_chars = tokenizer, most_chars
        self._cut = _cuts(tokenizer)
        self._pieces: OrderedDict[str, list[int]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `Tokenizer.encoding(text)`."""
        if self._cut is None:
            return self._plain(text)
        token_ids: list[int] = []
        starts = [match.start() for match in self._cut.finditer(text)]
        for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
            token_ids += self._piece(text[start:end])
        return token_ids

    @property
    def chars(self) -> int:
        """Return the number of characters of the cached pieces."""
        return self._chars

    def _piece(self, text: str) -> list[int]:
        if len(text) < LEAST_CHARS:
            return self._plain(text) if text else []
        with self._lock:
            if (cached := self._pieces.get(text)) is not None:
                self._pieces.move_to_end(text)
                return cached
        token_ids = self._plain(text)
        with self._lock:
            if text not in self._pieces:
                self._pieces[text] = token_ids
                self._chars += len(text)
            while self._chars > self._most_chars:
                self._chars -= len(self._pieces.popitem(last=False)[0])
        return token_ids

    def _plain(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encoding(text).ids
        return token_ids


def _cuts(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return a pattern that matches where texts may be cut, before added tokens; None = nowhere.

    Texts are not cut if an added token depends on the text around it.
    """
    added = list(tokenizer.rust.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added):
        return None
    contents = sorted((token.content for token in added if token.content), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, contents))) if contents else None
    if pattern is None:
        return None
    # Tokenizers have parts of any kind: texts are not cut if the pieces of a test text do not add up.
    probe = f"Two words{contents[0]} and\n\nmore.{contents[0]}{contents[-1]}x {contents[-1]}"
    starts = [match.start() for match in pattern.finditer(probe)]
    pieces = [probe[a:b] for a, b in zip([0, *starts], [*starts, len(probe)], strict=True)]
    joined_ids = [i for piece in pieces if piece for i in tokenizer.encoding(piece).ids]
    return pattern if joined_ids == tokenizer.encoding(probe).ids else None
