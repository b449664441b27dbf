"""Cache of token ids for texts with a common beginning: each turn of a conversation adds little new text.

For the tokenizer, a special token ends the text before it. Texts are therefore cut before each special token,
and pieces that were encoded before are not encoded again. Used by gateways, which see all turns of a
conversation.
"""

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mamba_text.quick_encoder import QuickEncoder
from mamba_text.tokenizer import Tokenizer

TokenIds = npt.NDArray[np.int32]
MOST_CACHED_BYTES = 32 << 20
"""Memory of the cached token ids: eight million tokens, about 100 conversations of 220 KB. The least recently
used pieces are removed first."""
PIECE_BYTES = 160
"""Memory of a cached piece besides its ids."""
NO_IDS = np.empty(0, np.int32)
PieceKey = tuple[int, int]
"""Hash of a piece by Python's keyed hash of texts, and its number of characters. If two pieces had the same
key, a prompt would be routed like another one. Its answer would be the same: engines encode it themselves."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The token ids of a text, or of its beginning if the encoding was stopped."""

    token_ids: TokenIds
    chars: int
    """Number of characters of the text that the ids stand for."""


class SegmentCache:
    """Remembers the token ids of texts that one tokenizer encoded; several threads may use it.

    `most_bytes` bounds its memory.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        most_bytes: int = MOST_CACHED_BYTES,
        encoder: QuickEncoder | None = None,
    ) -> None:
        self._encoder, self._most_bytes = encoder or QuickEncoder(tokenizer), most_bytes
        self._cut = _cuts(tokenizer)
        # Pieces are known by a hash: the texts of all conversations would take as much memory again. A digest
        # of hashlib takes four times as long, and lets go of the interpreter for each piece.
        self._pieces: OrderedDict[PieceKey, TokenIds] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def encode(self, text: str, stop: Callable[[int], bool] = lambda _: False) -> EncodedText:
        """Return the ids that `Tokenizer.encoding` finds for `text`.

        `stop` is called before each piece that is not cached, with the number of characters from there to the
        end of the text; if it returns True, the ids end there.
        """
        pieces = [text[start:end] for start, end in self._places(text)]
        keys = [(hash(piece), len(piece)) for piece in pieces]
        ids: list[TokenIds] = []
        start = 0
        for piece, key, cached in zip(pieces, keys, self._cached(keys), strict=True):
            if cached is None:
                if stop(len(text) - start):
                    return EncodedText(_joined(ids), start)
                cached = self._keep(key, np.array(self._encoder.token_ids(piece), np.int32))
            ids.append(cached)
            start += len(piece)
        return EncodedText(_joined(ids), len(text))

    @property
    def held_bytes(self) -> int:
        """Return the memory of the cached pieces."""
        return self._bytes

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the beginning and end of each piece of a text."""
        starts = self._cut.places(text) if self._cut is not None else []
        for start, end in itertools.pairwise((0, *starts, len(text))):
            if start < end:
                yield start, end

    def _cached(self, keys: Sequence[PieceKey]) -> list[TokenIds | None]:
        """Return the ids of each piece; None = its ids are not cached."""
        with self._lock:
            cached_ids = [self._pieces.get(key) for key in keys]
            for key, ids in zip(keys, cached_ids, strict=True):
                if ids is not None:
                    self._pieces.move_to_end(key)
            return cached_ids

    def _keep(self, key: PieceKey, token_ids: TokenIds) -> TokenIds:
        with self._lock:
            if key not in self._pieces:
                self._pieces[key] = token_ids
                self._bytes += token_ids.nbytes + PIECE_BYTES
            while self._bytes > self._most_bytes:
                self._bytes -= self._pieces.popitem(last=False)[1].nbytes + PIECE_BYTES
        return token_ids


def _joined(ids: list[TokenIds]) -> TokenIds:
    return np.concatenate(ids) if ids else NO_IDS


def _cuts(tokenizer: Tokenizer) -> "_Cuts | None":
    """Return where texts may be cut, before added tokens; None = texts are not cut.

    That is so without added tokens, if one depends on the text around it, and if the tokens of two parts of a
    test text are not those of the whole text.
    """
    added = list(tokenizer.rust.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added):
        return None
    contents = sorted((token.content for token in added if token.content), key=len, reverse=True)
    if not contents:
        return None
    cuts = _Cuts(contents)
    # Tokenizers have parts of any kind: texts are not cut if the pieces of a test text do not add up.
    probe = f"Two words{contents[0]} and\n\nmore.{contents[0]}{contents[-1]}x {contents[-1]}"
    starts = cuts.places(probe)
    pieces = [probe[a:b] for a, b in itertools.pairwise((0, *starts, len(probe)))]
    joined_ids = [i for piece in pieces if piece for i in tokenizer.encoding(piece).ids]
    return cuts if joined_ids == tokenizer.encoding(probe).ids else None


class _Cuts:
    """Finds the added tokens of a tokenizer, `contents`, in texts; longer ones come first."""

    def __init__(self, contents: Sequence[str]) -> None:
        # A pattern whose matches begin with one character is searched several times as fast as one of all
        # tokens, which may begin with several.
        firsts = dict.fromkeys(content[0] for content in contents)
        self._patterns = [
            re.compile("|".join(re.escape(content) for content in contents if content[0] == first))
            for first in firsts
        ]

    def places(self, text: str) -> list[int]:
        """Return the characters of a text at which added tokens begin, in order."""
        spans = [match.span() for pattern in self._patterns for match in pattern.finditer(text)]
        if len(self._patterns) > 1:
            spans.sort()
        starts: list[int] = []
        end = 0
        for start, stop in spans:
            if start >= end:  # otherwise it lies within the token before it
                starts.append(start)
                end = stop
        return starts
