"""Vocabularies of a model and a draft model: what is the same, and how a difference is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.vocabulary import check_same_vocabulary

TOKENS = {"a": 0, "b": 1, "c": 2}
END = [{"id": 3, "content": "<end>"}]


def tokenizer(folder: Path, vocabulary: Any, added: list[dict[str, Any]], **more: Any) -> Path:
    folder.mkdir()
    document = {"model": {"vocab": vocabulary, **more}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def compare(folder: Path, vocabulary: Any, added: list[dict[str, Any]], **more: Any) -> None:
    model = tokenizer(folder / "model", TOKENS, END)
    check_same_vocabulary(model, tokenizer(folder / "draft", vocabulary, added, **more), "hf://a/b")


@pytest.mark.parametrize("vocabulary", [{"c": 2, "a": 0, "b": 1}, [["a", 0.0], ["b", -1.0], ["c", -2.0]]])
def test_the_same_tokens_are_accepted_however_they_are_written(tmp_path: Path, vocabulary: Any) -> None:
    compare(tmp_path, vocabulary, END, merges=["a b"])


@pytest.mark.parametrize(
    ("vocabulary", "added", "message"),
    [
        ({"a": 0, "x": 1, "c": 2}, END, "draft model hf://a/b has token 1 'x', the model token 1 'b'"),
        (TOKENS, [], "has no token 3, the model token 3 '<end>'"),
        (TOKENS, [*END, {"id": 4, "content": "<more>"}], "has token 4 '<more>', the model no token 4"),
    ],
)
def test_the_first_token_that_differs_is_named(
    tmp_path: Path, vocabulary: Any, added: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        compare(tmp_path, vocabulary, added)


def test_a_tokenizer_that_only_one_of_the_models_has_cannot_be_compared(tmp_path: Path) -> None:
    model, draft = tokenizer(tmp_path / "model", TOKENS, END), tmp_path / "draft"
    with pytest.raises(UnsupportedModel, match=r"draft/tokenizer.json is missing"):
        check_same_vocabulary(model, draft, "hf://a/b")
    check_same_vocabulary(draft, tmp_path / "none", "hf://a/b")
