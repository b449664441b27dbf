"""The tokenizer of tiny-recall: no text is lost, a known word is one id, the template says who speaks."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from training.tiny_recall import tokenizer
from training.tiny_recall.vocabulary import KEY_WORDS, SPECIAL_TOKENS, VALUE_WORDS, WORDS

WORDS_TOKENIZER = tokenizer.build()


def ids(text: str) -> list[int]:
    return list(WORDS_TOKENIZER.encode(text, add_special_tokens=False).ids)


def text_of(tokens: list[int]) -> str:
    return str(WORDS_TOKENIZER.decode(tokens, skip_special_tokens=False))


def render(messages: list[dict[str, object]], add_generation_prompt: bool = False) -> str:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(tokenizer.CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_text_comes_back_unchanged(text: str) -> None:
    assert text_of(ids(text)) == text


@given(st.text(st.characters(max_codepoint=127), max_size=200))
def test_any_ascii_text_comes_back_unchanged(text: str) -> None:
    assert text_of(ids(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_no_token_id_is_outside_the_vocabulary(text: str) -> None:
    assert all(0 <= token < WORDS_TOKENIZER.get_vocab_size() for token in ids(text))


def test_the_vocabulary_has_exactly_512_ids_without_holes() -> None:
    vocabulary = WORDS_TOKENIZER.get_vocab()
    assert sorted(vocabulary.values()) == list(range(512))


def test_special_tokens_come_first_and_are_one_id_each() -> None:
    assert [ids(token) for token in SPECIAL_TOKENS] == [[index] for index in range(5)]


@pytest.mark.parametrize("word", [*KEY_WORDS, *VALUE_WORDS])
def test_every_key_and_value_word_is_one_id_wherever_it_stands(word: str) -> None:
    (token,) = ids(word)
    assert ids(f"x {word}")[-1] == token
    assert ids(f"{word}\n")[0] == token
    assert ids(f"<|assistant|>{word}<|end|>")[1] == token


def test_no_word_stands_twice_in_the_vocabulary() -> None:
    assert len(set(WORDS)) == len(WORDS)


def test_an_unknown_word_is_spelled_letter_by_letter() -> None:
    assert len(ids("zebra")) == 5


def test_each_digit_and_each_space_is_its_own_token() -> None:
    assert [text_of([token]) for token in ids("lamp 42: red")] == ["lamp", " ", "4", "2", ":", " ", "red"]


def test_a_known_word_inside_a_longer_word_does_not_split_it() -> None:
    assert ids("red")[0] not in ids("hundred")


def test_a_word_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "WORDS", ("lamp", "lamp"))
    with pytest.raises(ValueError, match="lamp"):
        tokenizer.build()


def test_a_conversation_renders_with_its_roles_and_the_generation_prompt() -> None:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    expected = "<|system|>a<|end|><|user|>b<|end|><|assistant|>c<|end|><|user|>d<|end|>"
    assert render(messages) == expected
    assert render(messages, add_generation_prompt=True) == expected + "<|assistant|>"


def test_a_longer_conversation_begins_with_the_text_of_the_shorter_one() -> None:
    first: list[dict[str, object]] = [{"role": "user", "content": "What is lamp?"}]
    second = [*first, {"role": "assistant", "content": "red"}, {"role": "user", "content": "What is door?"}]
    assert render(second).startswith(render(first, add_generation_prompt=True) + "red<|end|>")


def test_white_space_in_a_message_is_kept() -> None:
    assert render([{"role": "user", "content": " a\n"}]) == "<|user|> a\n<|end|>"


def test_a_message_made_of_text_parts_renders_as_their_text() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert render([{"role": "user", "content": parts}]) == "<|user|>a b<|end|>"


def test_a_message_without_content_renders_as_an_empty_turn() -> None:
    assert render([{"role": "assistant", "content": None}]) == "<|assistant|><|end|>"


def test_the_developer_role_speaks_as_the_system() -> None:
    assert render([{"role": "developer", "content": "a"}]) == "<|system|>a<|end|>"


def test_an_unknown_role_is_an_error_that_names_it() -> None:
    with pytest.raises(TemplateError, match="narrator"):
        render([{"role": "narrator", "content": "a"}])


def test_the_written_files_hold_the_same_tokenizer_and_template(tmp_path: Path) -> None:
    tokenizer.write(tmp_path, max_length=4096)
    read = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert read.get_vocab() == WORDS_TOKENIZER.get_vocab()
    assert read.encode("What is lamp 42?").ids == ids("What is lamp 42?")
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["model_max_length"] == 4096
    assert written["eos_token"] == "<|end|>"
    assert written["chat_template"] == (tmp_path / "chat_template.jinja").read_text()


def test_transformers_renders_the_template_to_the_same_ids(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.write(tmp_path, max_length=4096)
    (tmp_path / "config.json").write_text('{"model_type": "nemotron_h"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages: list[dict[str, object]] = [{"role": "user", "content": "What is lamp 42?"}]
    rendered = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert rendered == ids(render(messages, add_generation_prompt=True))
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == (4, 0, None)
