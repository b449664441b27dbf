"""A tokenizer whose tokens are bytes, and some special ones: any text can be spelt in it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = "<eos>"


def byte_tokenizer(special: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer of 256 bytes, then EOS, then `special`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, *special])
    return tokenizer


def write_tokenizer(folder: Path, special: Sequence[str] = ()) -> Tokenizer:
    """Write the same tokenizer as tokenizer.json of a model's directory."""
    tokenizer = byte_tokenizer(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer
