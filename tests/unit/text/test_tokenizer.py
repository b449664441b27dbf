"""Loading a model directory's tokenizer, its rules and its complaints."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from mamba_server.text.errors import BadTokenizer
from mamba_server.text.tokenizer import THREAD_FROM_CHARS, Tokenizer
from tiny_model import SPECIAL, byte_level_tokenizer, write_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_model(tmp_path_factory.mktemp("model") / "tiny"))


def load(tmp_path: Path, **changes: Any) -> Tokenizer:
    return Tokenizer.load(write_model(tmp_path / "tiny", **changes))


def test_ids_decode_to_the_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("hello 世界")) == "hello 世界"


def test_the_tokenizers_own_rule_puts_bos_in_front(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello")[0] == tokenizer.bos_id == SPECIAL.index("<s>")


def test_without_special_tokens_there_is_no_bos(tokenizer: Tokenizer) -> None:
    assert tokenizer.bos_id not in tokenizer.encode("hello", special=False)


def test_add_bos_token_true_adds_what_the_tokenizer_does_not(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path, tokenizer=byte_level_tokenizer(bos=False), tokenizer_config={"add_bos_token": True}
    )
    ids = tokenizer.encode("hello")
    assert ids[0] == tokenizer.bos_id
    assert ids.count(ids[0]) == 1


def test_add_bos_token_true_does_not_add_a_second_one(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, tokenizer_config={"add_bos_token": True})
    assert tokenizer.encode("hello").count(SPECIAL.index("<s>")) == 1


def test_add_bos_token_false_takes_it_away(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, tokenizer_config={"add_bos_token": False})
    assert SPECIAL.index("<s>") not in tokenizer.encode("hello")


def test_special_tokens_may_be_strings_or_objects(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_special_token_in_the_prompt_is_one_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user", special=False)
    assert ids[0] == SPECIAL.index("<|im_start|>")


async def test_long_texts_are_encoded_in_a_thread_and_short_ones_are_not(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def encode(text: str, *, special: bool = True) -> list[int]:
        names.append(threading.current_thread() is threading.main_thread())
        return [1]

    monkeypatch.setattr(tokenizer, "encode", encode)
    await tokenizer.encode_all(["short"])
    await tokenizer.encode_all(["x" * (THREAD_FROM_CHARS // 2)] * 2)
    assert names == [True, False, False]


async def test_a_long_text_has_the_same_ids_in_a_thread(tokenizer: Tokenizer) -> None:
    text = "hello world " * 600
    assert await tokenizer.encode_all([text, "hi"]) == [tokenizer.encode(text), tokenizer.encode("hi")]


@pytest.mark.parametrize("token", ["<0x0A>", "hello"])
def test_pieces_of_byte_level_tokens_join_to_the_text(tokenizer: Tokenizer, token: str) -> None:
    text = f"{token} 世界 🎉"
    raw = b"".join(tokenizer.piece(item).raw for item in tokenizer.encode(text, special=False))
    assert raw == text.encode()


def test_the_piece_of_a_special_token_is_marked(tokenizer: Tokenizer) -> None:
    piece = tokenizer.piece(SPECIAL.index("</s>"))
    assert (piece.text, piece.special) == ("</s>", True)


def test_the_piece_of_an_unknown_id_is_empty(tokenizer: Tokenizer) -> None:
    assert tokenizer.piece(10**6).raw == b""


def test_a_tokenizer_larger_than_the_embeddings_is_refused_with_file_and_numbers(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer) as caught:
        load(tmp_path, config={"vocab_size": 100})
    message = str(caught.value)
    assert str(tmp_path / "tiny" / "tokenizer.json") in message
    assert "embeddings end at 99" in message
    assert "vocab_size 100" in message
    assert caught.value.exit_code == 2


def test_embeddings_larger_than_the_tokenizer_are_fine(tmp_path: Path) -> None:
    assert load(tmp_path, config={"vocab_size": 100_000}).bos_id == 1


def test_the_vocabulary_size_may_be_in_text_config(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "tiny")
    (directory / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 5000}}))
    assert Tokenizer.load(directory).bos_id == 1


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", None, "no such file"),
        ("tokenizer.json", "{", "tokenizer.json"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", "{", "not readable as JSON"),
        ("config.json", "{}", "vocab_size is missing"),
        ("config.json", '{"vocab_size": "400"}', "vocab_size is missing"),
        ("config.json", '{"text_config": null}', "vocab_size is missing"),
        ("tokenizer.json", "{}", "tokenizer.json"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str | None, complaint: str) -> None:
    directory = write_model(tmp_path / "tiny")
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(BadTokenizer, match=complaint) as caught:
        Tokenizer.load(directory)
    assert name in str(caught.value)


def test_a_tokenizer_that_truncates_or_pads_is_told_not_to(tmp_path: Path) -> None:
    rust = byte_level_tokenizer()
    rust.enable_truncation(4)
    rust.enable_padding(length=64)
    tokenizer = load(tmp_path, tokenizer=rust)
    assert 4 < len(tokenizer.encode("hello world, hello world")) < 64


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "tiny")
    (directory / "tokenizer_config.json").write_bytes(b'{"bos_token": "\xff"}')
    with pytest.raises(BadTokenizer, match=r"tokenizer_config\.json: not readable as JSON"):
        Tokenizer.load(directory)


@pytest.mark.parametrize("given", [5, None, ["<s>"], {"text": "<s>"}])
def test_a_special_token_of_a_foreign_form_is_none(tmp_path: Path, given: object) -> None:
    tokenizer = load(tmp_path, tokenizer_config={"bos_token": given, "add_bos_token": True})
    assert tokenizer.bos_id is None
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


async def test_texts_encoded_together_keep_their_order_in_either_way(tokenizer: Tokenizer) -> None:
    for length in (1, 2000):
        texts = [f"{number} " * length for number in range(4)]
        assert await tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]
