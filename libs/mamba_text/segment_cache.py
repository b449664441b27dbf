"""Cache of token ids for texts with a common beginning: each turn of a conversation adds little new text.

For the tokenizer, an added token (such as a special token) ends the text before it. Texts are therefore cut
before each added token, and pieces that were encoded before are not encoded again. Gateways use the cache, as
they see all turns of a conversation. The beginning of a long conversation is remembered as a whole, so that
it need not be cut again.
"""

import itertools
import re
import sys
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
LONG_TEXT = 16 * 1024
"""Number of characters from which the beginning of a text is remembered as a whole."""
OPEN_END = 256
"""Number of characters at the end of a text that are not part of its beginning: the next turn of a
conversation often has other text there, as templates show the last answer differently from those before."""
MOST_BEGINNING_BYTES = 24 << 20
"""Memory of the beginnings: about 40 conversations of 220 KB."""
NO_IDS = np.empty(0, np.int32)
PieceKey = tuple[int, int]
"""Hash of a piece by Python's keyed hash of texts, and its number of characters. If two pieces had the same
key, a prompt would be routed like another one. Its answer would be the same: engines encode it themselves."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Beginning:
    """The beginning of a long text up to a place where texts are cut, with its token ids."""

    text: str
    """The beginning and the characters after it that decide that texts are cut there."""
    chars: int
    """Number of characters of the beginning."""
    token_ids: TokenIds

    @property
    def bytes(self) -> int:
        """Memory of text and ids in bytes."""
        return sys.getsizeof(self.text) + self.token_ids.nbytes


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The token ids of a text, or of its beginning if the encoding was stopped."""

    token_ids: TokenIds
    chars: int
    """Number of characters of the text that the ids stand for."""
    beginning: Beginning | None = None
    """The beginning that was known of an earlier text; None = none was."""
    next_beginning: Beginning | None = None
    """The beginning that is known from now on; None = the text is short, or its encoding was stopped."""


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
        self._beginnings: list[Beginning] = []
        """Beginnings of long texts, the last one used last."""
        self._lock = threading.Lock()

    def encode(self, text: str, stop: Callable[[int], bool] = lambda _: False) -> EncodedText:
        """Return the ids that `Tokenizer.encoding` finds for `text`.

        `stop` is called before each piece that is not cached, with the number of characters from there to the
        end of the text; if it returns True, the ids end there.
        """
        beginning = self._beginning_of(text)
        start = beginning.chars if beginning is not None else 0
        pieces = [text[begin:end] for begin, end in self._places(text, start)]
        keys = [(hash(piece), len(piece)) for piece in pieces]
        ids = [beginning.token_ids] if beginning is not None else []
        for piece, key, cached in zip(pieces, keys, self._cached(keys), strict=True):
            if cached is None:
                if stop(len(text) - start):
                    return EncodedText(_joined(ids), start, beginning)
                cached = self._keep(key, np.array(self._encoder.token_ids(piece), np.int32))
            ids.append(cached)
            start += len(piece)
        token_ids = _joined(ids)
        longer = self._keep_beginning(text, beginning, pieces, ids, token_ids)
        return EncodedText(token_ids, len(text), beginning, longer)

    @property
    def held_bytes(self) -> int:
        """Memory of the cached pieces in bytes."""
        return self._bytes

    def _places(self, text: str, first: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the beginning and end of each piece of a text from `first` on, where a piece begins."""
        starts = self._cut.places(text, first) if self._cut is not None else []
        for start, end in itertools.pairwise((first, *starts, len(text))):
            if start < end:
                yield start, end

    def _beginning_of(self, text: str) -> Beginning | None:
        """Return the longest known beginning of a text."""
        if len(text) < LONG_TEXT:
            return None
        with self._lock:
            beginning = max(
                (each for each in self._beginnings if text.startswith(each.text)),
                key=lambda each: each.chars,
                default=None,
            )
            if beginning is not None:
                self._beginnings.remove(beginning)
                self._beginnings.append(beginning)
            return beginning

    def _keep_beginning(
        self,
        text: str,
        beginning: Beginning | None,
        pieces: Sequence[str],
        ids: Sequence[TokenIds],
        token_ids: TokenIds,
    ) -> Beginning | None:
        """Remember a longer beginning of a long text in the place of `beginning`, and return it.

        `pieces` follow `beginning`; `ids` has the ids of `beginning`, if it is not None, and of each piece.
        """
        if len(text) < LONG_TEXT or self._cut is None:
            return None
        # No added token can begin before the end of the beginning and reach beyond what both texts share.
        most = len(text) - max(OPEN_END, self._cut.longest)
        end, tokens = len(text), len(token_ids)
        for piece, piece_ids in zip(reversed(pieces), reversed(ids), strict=False):
            if end <= most:
                break
            end -= len(piece)
            tokens -= len(piece_ids)
        if not 0 < end <= most or (beginning is not None and end == beginning.chars):
            return beginning
        longer = Beginning(text[: end + self._cut.longest], end, token_ids[:tokens])
        with self._lock:
            if beginning in self._beginnings:
                self._beginnings.remove(beginning)
            self._beginnings.append(longer)
            while sum(each.bytes for each in self._beginnings) > MOST_BEGINNING_BYTES:
                del self._beginnings[0]
        return longer

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
    """Return the finder of the places where texts may be cut; None = texts must not be cut.

    The result is None if the tokenizer has no added tokens, if one of them depends on the text around it, or
    if the pieces of a test text do not have the same tokens as the whole text.
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
        self.longest = len(contents[0])
        """Number of characters of the longest added token."""
        self._patterns = [
            re.compile("|".join(re.escape(content) for content in contents if content[0] == first))
            for first in firsts
        ]

    def places(self, text: str, first: int = 0) -> list[int]:
        """Return the characters of a text, from `first` on, at which added tokens begin, in order."""
        spans = [match.span() for pattern in self._patterns for match in pattern.finditer(text, first)]
        if len(self._patterns) > 1:
            spans.sort()
        starts: list[int] = []
        end = 0
        for start, stop in spans:
            if start >= end:  # otherwise it lies within the token before it
                starts.append(start)
                end = stop
        return starts
