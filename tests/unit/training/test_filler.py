"""Filler: text that says nothing about any key."""

from random import Random

from training.tiny_recall import filler
from training.tiny_recall.vocabulary import KEY_WORDS, VALUE_WORDS


def letters(text: str) -> set[str]:
    return set("".join(character if character.isalpha() else " " for character in text).split())


def test_no_sentence_names_a_key_or_a_value() -> None:
    known = {*KEY_WORDS, *VALUE_WORDS}
    assert [sentence for sentence in filler.SENTENCES if letters(sentence) & known] == []


def test_every_sentence_ends_with_a_full_stop_and_holds_no_line_break() -> None:
    random = Random(0)
    sentences = [filler.sentence(random) for _ in range(200)]
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


def test_some_sentences_are_made_of_words_that_must_be_spelled() -> None:
    random = Random(1)
    strange = sum(filler.sentence(random) not in filler.SENTENCES for _ in range(1000))
    assert 50 < strange < 150


def test_a_paragraph_has_as_many_sentences_as_asked() -> None:
    assert filler.paragraph(Random(2), 7).count(".") == 7
    assert filler.paragraph(Random(2), 0) == ""
