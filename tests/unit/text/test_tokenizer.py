"""Loading a model directory's tokenizer, its rules and its complaints."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer

from mamba_api.openai import CompletionRequest
from mamba_text.errors import BadTokenizer
from mamba_text.prompt import completion_token_ids
from mamba_text.tokenizer import Tokenizer
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


def test_a_completion_says_whether_its_prompt_begins_with_bos(tokenizer: Tokenizer) -> None:
    asked = [
        CompletionRequest(prompt=["hello", ""], add_special_tokens=special) for special in (None, True, False)
    ]
    plain = tokenizer.encode("hello", special=False)
    bos = tokenizer.bos_id
    assert [completion_token_ids(tokenizer, one) for one in asked] == [
        [[bos, *plain], [bos]],
        [[bos, *plain], [bos]],
        [plain, [bos]],
    ]


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


def test_no_text_has_more_characters_than_so_many_for_each_token(tokenizer: Tokenizer) -> None:
    each = tokenizer.most_chars_per_token
    assert each is not None
    for text in ("hello world " * 50, "\u4e16\U0001f389" * 20, "<|im_start|>" * 9, " \n\t" * 40, "x" * 99):
        assert len(text) <= each * len(tokenizer.encode(text, special=False))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CUT_SHORT: list[dict[str, Any]] = [
    {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
    {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, BYTES]}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}, BYTES]}},
]  # fmt: skip


@pytest.mark.parametrize("change", CUT_SHORT, ids=lambda change: str(change)[:60])
def test_where_characters_can_vanish_nothing_is_said_of_how_many_a_token_has(
    tokenizer: Tokenizer, change: dict[str, Any]
) -> None:
    changed = {**json.loads(tokenizer.rust.to_str()), **change}
    assert Tokenizer(RustTokenizer.from_str(json.dumps(changed)), {}).most_chars_per_token is None


def test_a_normalizer_that_joins_characters_is_counted(tokenizer: Tokenizer) -> None:
    changed = {**json.loads(tokenizer.rust.to_str()), "normalizer": {"type": "NFC"}}
    each = Tokenizer(RustTokenizer.from_str(json.dumps(changed)), {}).most_chars_per_token
    assert tokenizer.most_chars_per_token is not None
    assert each == 3 * tokenizer.most_chars_per_token


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    text = "hello world " * 10_000
    made: list[list[int]] = []
    encoding = threading.Thread(target=lambda: made.append(tokenizer.encode(text)))
    turns = 0
    encoding.start()
    while encoding.is_alive():
        turns += 1
    encoding.join()
    assert turns > 1000
    assert made == [tokenizer.rust.encode(text).ids]
    assert tokenizer.encoding(text).offsets == tokenizer.rust.encode(text, add_special_tokens=False).offsets
