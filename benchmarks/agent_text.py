"""Text like that of coding agents, and a tokenizer that fits it, both out of this checkout.

No published tokenizer is needed: a vocabulary as large as that of published models is trained on one half of
the files, and messages are parts of the other half.
"""

import json
import random
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "server/mamba_server/builtin/tiny-recall"
FILES = ("docs/**/*.md", "server/**/*.py", "operator/**/*.py", "libs/**/*.py", "tests/**/*.py")
VOCABULARY = 32_000
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where texts are cut before they become tokens, as published models do it."""


def _files() -> list[str]:
    paths = sorted({path for pattern in FILES for path in ROOT.glob(pattern)})
    return [path.read_text("utf-8") for path in paths]


class AgentText:
    """Parts of the files of this checkout, in a random order that `seed` repeats."""

    def __init__(self, seed: int) -> None:
        self._text, self._random = "".join(_files()[1::2]), random.Random(seed)

    def part(self, chars: int) -> str:
        """Return another part of `chars` characters."""
        start = self._random.randrange(len(self._text) - chars)
        return self._text[start : start + chars]


def write_text_side(folder: Path) -> Path:
    """Write tokenizer, template and configuration of a model without weights; return the folder."""
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder)
    config = json.loads((SHIPPED / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY}), "utf-8")
    shipped = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    special = [token.content for token in shipped.get_added_tokens_decoder().values()]
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(content, special=True) for content in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_files()[::2], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
