"""Text to token ids and back, from the `tokenizer.json` and `tokenizer_config.json` of a model directory.

Made once by the API process. Knows special tokens, the rule for the beginning-of-sequence token and the exact
bytes of each token. It never sees the model's weights and never decides where a sequence ends.
"""

import asyncio
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from mamba_server.text.errors import BadTokenizer

# Below this many characters encoding takes less time than handing it to a thread.
THREAD_FROM_CHARS = 4096


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE uses for bytes (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in plain}
    others = [value for value in range(256) if value not in plain]
    table.update({chr(256 + place): value for place, value in enumerate(others)})
    return table


_BYTES = _byte_alphabet()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the model directory; {} when there is no such file.

    Raises BadTokenizer when the file is not a JSON object.
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
    """A special token is a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


@dataclass(frozen=True, slots=True)
class Piece:
    """One token for the eye: its exact bytes and their text (U+FFFD for a part of a character)."""

    text: str
    raw: bytes
    special: bool = False
    """Not a part of the answer's text."""


class Tokenizer:
    """A model's tokenizer. Thread-safe: the Rust object is, and nothing here changes after `__init__`."""

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
        self._byte_level = '"ByteLevel"' in rust.to_str().split('"model"', 1)[0]
        added = rust.get_added_tokens_decoder().values()
        self._added = {token.content: bool(token.special) for token in added}
        # Per object, so that a tokenizer of another model in the same process has its own.
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
        """Token ids of a text; with `special`, after the model's rule for the beginning-of-sequence token."""
        token_ids: list[int] = self.rust.encode(
            text, add_special_tokens=special and self._bos_rule is not False
        ).ids
        if special and self._bos_rule is True and self.bos_id is not None and token_ids[:1] != [self.bos_id]:
            token_ids.insert(0, self.bos_id)
        return token_ids

    async def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, in a thread when the texts are long: the event loop keeps streaming meanwhile."""
        if sum(map(len, texts)) < THREAD_FROM_CHARS:
            return [self.encode(text) for text in texts]
        return await asyncio.to_thread(lambda: [self.encode(text) for text in texts])

    def encoding(self, text: str) -> Encoding:
        """Token ids with character offsets, without special tokens of the tokenizer's own."""
        return self.rust.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.rust.decode(token_ids, skip_special_tokens=True)

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


def _check_vocabulary(rust: RustTokenizer, directory: Path) -> None:
    """Every id the tokenizer can produce needs a row in the embeddings."""
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
