"""Comparison of the vocabularies of two models: whether each token id stands for the same text in both.

The boot of an engine calls it for a draft model, whose tokens become those of the model. Merges, normalizers
and templates do not matter, because the draft model is given token ids.
"""

from itertools import zip_longest
from pathlib import Path

import msgspec

from mamba_server.model.checkpoint.errors import UnsupportedModel

FILE = "tokenizer.json"
_SHOWN_CHARS = 40


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = msgspec.field(default_factory=dict)


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Document(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] | None = None


def check_same_vocabulary(model: Path, draft: Path, uri: str) -> None:
    """Check that the draft model of `uri` in directory `draft` has the tokens of the model in `model`.

    If neither model has a tokenizer of its own, their tokens are not compared. Raises UnsupportedModel, which
    names the first token that differs.
    """
    paths = [directory / FILE for directory in (model, draft)]
    present = [path.is_file() for path in paths]
    if not any(present):
        return
    if not all(present):
        missing = paths[present.index(False)]
        raise UnsupportedModel(
            f"draft model {uri}: {missing} is missing, so the tokens of the two models cannot be compared: "
            "put the tokenizer there that the weights were trained with"
        )
    contents = [path.read_bytes() for path in paths]
    if contents[0] == contents[1]:
        return
    own, other = (_tokens(content, path) for content, path in zip(contents, paths, strict=True))
    for token, (mine, theirs) in enumerate(zip_longest(own, other)):
        if mine != theirs:
            raise UnsupportedModel(
                f"draft model {uri} has {_named(token, theirs)}, the model {_named(token, mine)}: choose a "
                "draft model with the model's own tokenizer, such as a smaller one of its family"
            )


def _named(token: int, text: str | None) -> str:
    return f"no token {token}" if text is None else f"token {token} {text[:_SHOWN_CHARS]!r}"


def _tokens(content: bytes, path: Path) -> list[str | None]:
    """Return the text of each token id, None where an id stands for none. Raises UnsupportedModel."""
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.MsgspecError as error:
        raise UnsupportedModel(f"{path}: the tokens of this tokenizer cannot be read: {error}") from error
    vocabulary = document.model.vocab
    texts = (
        {token: text for text, token in vocabulary.items()}
        if isinstance(vocabulary, dict)
        else {token: text for token, (text, _) in enumerate(vocabulary)}
    )
    texts |= {token.id: token.content for token in document.added_tokens or ()}
    return [texts.get(token) for token in range(max(texts, default=-1) + 1)]
