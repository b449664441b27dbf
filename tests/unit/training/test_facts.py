"""Facts: keys are unique, a document and a question write them so that they can be found again."""

from collections import Counter
from random import Random

import pytest

from training.tiny_recall import facts
from training.tiny_recall.facts import Fact, Style
from training.tiny_recall.vocabulary import KEY_WORDS, VALUE_WORDS

FACT = Fact("lamp 42", "red")


def test_keys_never_repeat_within_one_document() -> None:
    random, taken = Random(0), set[str]()
    keys = [facts.fact(random, taken).key for _ in range(300)]
    assert len(set(keys)) == 300
    assert taken == set(keys)


def test_a_taken_key_is_not_given_again() -> None:
    taken = set(KEY_WORDS)
    assert all(facts.fact(Random(seed), set(taken)).key not in KEY_WORDS for seed in range(100))


def test_about_half_of_the_keys_are_plain_words() -> None:
    random = Random(1)
    plain = sum(facts.key(random) in KEY_WORDS for _ in range(2000))
    assert 900 <= plain <= 1100


def test_most_values_are_words_and_some_are_numbers() -> None:
    random = Random(2)
    kinds = Counter(
        "word" if value in VALUE_WORDS else "number" if value.isdigit() else "other"
        for value in (facts.value(random) for _ in range(2000))
    )
    assert kinds["word"] > 1100
    assert kinds["number"] > 200
    assert kinds["other"] > 200


def test_no_value_is_empty_or_has_spaces_around_it() -> None:
    random = Random(3)
    assert all(value and value == value.strip() for value in (facts.value(random) for _ in range(1000)))


@pytest.mark.parametrize("style", facts.STYLES, ids=lambda style: repr(style.template))
def test_a_written_fact_says_its_key_before_its_value(style: Style) -> None:
    text = facts.written(FACT, style)
    assert 0 <= text.index("lamp 42") < text.index("red")


@pytest.mark.parametrize("style", facts.STYLES, ids=lambda style: repr(style.template))
def test_every_style_parts_key_and_value_once(style: Style) -> None:
    assert style.template.count("{key}") == 1
    assert style.template.count("{value}") == 1
    assert style.separator


@pytest.mark.parametrize("seed", range(20))
def test_a_question_names_the_key_and_not_the_value(seed: int) -> None:
    asked = facts.question(Random(seed), FACT.key, facts.STYLES[seed % len(facts.STYLES)])
    assert "lamp 42" in asked
    assert "red" not in asked
    assert "{" not in asked


def test_every_way_to_ask_is_used() -> None:
    random = Random(4)
    asked = {facts.question(random, "lamp", facts.STYLES[0]) for _ in range(200)}
    assert len(asked) == len(facts.QUESTIONS)
