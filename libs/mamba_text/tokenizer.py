"""Converts text to token ids and back, by `tokenizer.json` and `tokenizer_config.json` of a model directory.

API processes and gateways load one for each model. It has the special tokens, the rule for the
beginning-of-sequence token and the exact bytes of each token. It never decides where a sequence ends.
"""

import functools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from mamba_text.encoder_pool import THREAD_FROM_CHARS
from mamba_text.errors import BadTokenizer

# Otherwise the library starts threads of its own for a batch, in addition to those of the pool.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

BATCH_FROM_CHARS = 256
"""Number of characters from which ids are found faster as a batch of one text, which leaves out offsets."""


def _byte_alphabet() -> dict[str, int]:
    """Return the printable characters that byte-level BPE uses for bytes (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in plain}
    others = [value for value in range(256) if value not in plain]
    table.update({chr(256 + place): value for place, value in enumerate(others)})
    return table


_BYTES = _byte_alphabet()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the model directory; {} if the file is missing.

    Raises BadTokenizer if the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise BadTokenizer(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadTokenizer(f"{path}: must hold a JSON object, holds {type(value).__name__}")
    return value


def _content(token: Any) -> str | None:
    """Return the text of a special token, a string or an object with `content`; None if it has none."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


@dataclass(frozen=True, slots=True)
class Piece:
    """One token for display: its exact bytes and their text (U+FFFD for a part of a character)."""

    text: str
    raw: bytes
    special: bool = False
    """Whether the token is not part of the answer's text."""


class _Model(msgspec.Struct):
    type: str | None = None
    byte_fallback: bool | None = None


class _Document(msgspec.Struct):
    """The parts of a tokenizer's description that are read.

    Vocabulary and merges are skipped: as Python objects they would be the largest data of this process.
    """

    model: _Model
    added_tokens: list[dict[str, Any]]
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None

    @property
    def steps(self) -> list[Any]:
        """Steps through which a text passes before and after the tokenizer's model, such as BPE."""
        return [self.normalizer, self.pre_tokenizer, self.post_processor, self.decoder]


class Tokenizer:
    """Turns text into token ids and back, as a model's tokenizer.json says.

    It is thread-safe: the Rust object is, and nothing here changes after `__init__`.
    """

    def __init__(self, rust: RustTokenizer, config: dict[str, Any]) -> None:
        self.rust = rust
        self.config = config
        self.special_tokens = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _content(config.get(name))) is not None
        }
        bos = self.special_tokens.get("bos_token")
        self.bos_id = rust.token_to_id(bos) if bos is not None else None
        self._bos_rule = config.get("add_bos_token")
        document = msgspec.json.decode(rust.to_str(), type=_Document)
        self._byte_level = '"ByteLevel"' in json.dumps(document.steps)
        added = rust.get_added_tokens_decoder().values()
        self._added = {token.content: bool(token.special) for token in added}
        self.most_chars_per_token = _most_chars_per_token(document, rust)
        """Bound on the characters of a text per token; None = no bound is known."""
        # A cache per object: a tokenizer of another model in the same process needs its own.
        self.piece = functools.lru_cache(maxsize=1 << 16)(self._piece)

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read a model directory.

        Raises BadTokenizer when a file is missing or broken, or when the tokenizer has ids that the model's
        embeddings (`vocab_size` of config.json) do not have.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise BadTokenizer(f"{path}: no such file; a model directory needs the tokenizer in this format")
        try:
            rust = RustTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise BadTokenizer(f"{path}: {error}") from error
        rust.no_truncation()
        rust.no_padding()
        _check_vocabulary(rust, directory)
        return cls(rust, read_json(directory / "tokenizer_config.json"))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text.

        With `special`, they begin with the beginning-of-sequence token if the model's rule says so.
        """
        token_ids: list[int] = self._encoded(text, special=special and self._bos_rule is not False).ids
        if special and self._bos_rule is True and self.bos_id is not None and token_ids[:1] != [self.bos_id]:
            token_ids.insert(0, self.bos_id)
        return token_ids

    def encoding(self, text: str) -> Encoding:
        """Return token ids with character offsets, without special tokens of the tokenizer's own."""
        return self._encoded(text, special=False)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids that `encoding` finds, in two thirds of its time: without offsets of characters."""
        # Short texts keep the thread: handing over to others takes as long as encoding them.
        if len(text) < BATCH_FROM_CHARS:
            short: list[int] = self.rust.encode(text, add_special_tokens=False).ids
            return short
        token_ids: list[int] = self.rust.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return token_ids

    def _encoded(self, text: str, *, special: bool) -> Encoding:
        if len(text) < THREAD_FROM_CHARS:
            return self.rust.encode(text, add_special_tokens=special)
        # Only this method lets other threads run in the meantime.
        return self.rust.encode_batch([text], add_special_tokens=special)[0]

    def decode(self, token_ids: list[int], *, special: bool = False) -> str:
        """Return the text of token ids; special tokens are left out unless `special`."""
        return self.rust.decode(token_ids, skip_special_tokens=not special)

    def ids_of(self, tokens: Iterable[str]) -> frozenset[int]:
        """Return the ids of those of `tokens` that are single tokens."""
        ids = (self.rust.token_to_id(token) for token in tokens)
        return frozenset(token_id for token_id in ids if token_id is not None)

    def _piece(self, token_id: int) -> Piece:
        token = self.rust.id_to_token(token_id)
        if token is None:
            return Piece("", b"")
        if token in self._added:
            return Piece(token, token.encode(), self._added[token])
        if self._byte_level and all(char in _BYTES for char in token):
            raw = bytes(_BYTES[char] for char in token)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            raw = bytes([int(token[3:5], 16)])
        else:
            raw = token.replace("\u2581", " ").encode()
        return Piece(raw.decode("utf-8", errors="replace"), raw)


_KEEPING = frozenset({"Prepend", "Replace", "Sequence", "NFC"})
"""Normalizers that shorten no text, except for NFC, which joins at most three characters to one."""


def _most_chars_per_token(document: _Document, rust: RustTokenizer) -> int | None:
    """Return the most characters of a text that one token can stand for; None = no bound is known.

    A bound is known for a byte-level BPE that drops no text, does not shorten any, and has no token for
    unknown text.
    """
    model = document.model
    normalizers = _kinds(document.normalizer)
    parts = _kinds(document.pre_tokenizer)
    bytewise = "ByteLevel" in parts or bool(model.byte_fallback)
    drops = '"Removed"' in json.dumps(document.pre_tokenizer) or any("White" in part for part in parts)
    shortened = normalizers - _KEEPING or _replaces_by_less(document.normalizer)
    if model.type != "BPE" or not bytewise or drops or shortened:
        return None
    if any(token["lstrip"] or token["rstrip"] for token in document.added_tokens):
        return None  # the token includes white space of any length
    longest = max(map(len, rust.get_vocab(with_added_tokens=True)))
    return longest * (3 if "NFC" in normalizers else 1)


def _kinds(part: Any) -> set[str]:
    """Return the types of a normalizer or pre-tokenizer and of its parts."""
    if isinstance(part, list):
        return set[str]().union(*map(_kinds, part))
    if not isinstance(part, dict):
        return set()
    return {str(part.get("type"))}.union(
        *(_kinds(value) for value in part.values() if isinstance(value, list))
    )


def _replaces_by_less(part: Any) -> bool:
    """Return whether a step Replace in `part` makes a text shorter, or matches a pattern of any length."""
    if isinstance(part, list):
        return any(map(_replaces_by_less, part))
    if not isinstance(part, dict):
        return False
    if part.get("type") == "Replace":
        pattern = part["pattern"].get("String")
        return pattern is None or len(part["content"]) < len(pattern)
    return any(_replaces_by_less(value) for value in part.values() if isinstance(value, list))


def _check_vocabulary(rust: RustTokenizer, directory: Path) -> None:
    """Check that every id of the tokenizer has a row in the embeddings. Raises BadTokenizer."""
    path = directory / "config.json"
    config = read_json(path)
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    if not isinstance(size, int):
        raise BadTokenizer(f"{path}: vocab_size is missing; it says how many token ids the model knows")
    highest = max(rust.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= size:
        raise BadTokenizer(
            f"{directory / 'tokenizer.json'}: has token ids up to {highest}, but the model's "
            f"embeddings end at {size - 1} (vocab_size {size} in {path}); the tokenizer is another model's"
        )
