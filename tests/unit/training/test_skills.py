"""The skills besides recall: every generated answer is the right one, checked from the question alone."""

import re
from random import Random

import pytest

from training.tiny_recall import skills
from training.tiny_recall.tokenizer import build
from training.tiny_recall.vocabulary import KEY_WORDS, VALUE_WORDS

SEEDS = range(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_of_an_addition_is_the_sum(seed: int) -> None:
    asked, answer = skills.addition(Random(seed))
    left, right = (int(number) for number in re.findall(r"\d+", asked))
    assert int(answer) == left + right
    assert answer == str(left + right)


def test_additions_have_one_and_two_digits_and_reach_past_a_hundred() -> None:
    random = Random(0)
    answers = [int(skills.addition(random)[1]) for _ in range(2000)]
    assert min(answers) < 10
    assert max(answers) > 150


@pytest.mark.parametrize("seed", SEEDS)
def test_counting_says_every_number_from_first_to_last(seed: int) -> None:
    asked, answer = skills.counting(Random(seed))
    numbers = [int(number) for number in re.findall(r"\d+", asked)]
    first, last = (1, numbers[0]) if len(numbers) == 1 else numbers
    assert [int(number) for number in answer.split(" ")] == list(range(first, last + 1))
    assert last <= 99


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_is_the_end_of_what_was_asked(seed: int) -> None:
    asked, answer = skills.copying(Random(seed))
    assert answer
    assert asked.endswith(answer)
    assert asked != answer


def test_copies_are_of_words_as_well_as_of_letters() -> None:
    random, known = Random(1), {*KEY_WORDS, *VALUE_WORDS}
    words = sum(set(skills.copying(random)[1].split()) <= known for _ in range(500))
    assert 200 < words < 300


def test_the_same_politeness_has_one_answer() -> None:
    answers: dict[str, str] = {}
    for seed in range(500):
        asked, answer = skills.manners(Random(seed))
        assert answers.setdefault(asked, answer) == answer
    assert len(answers) == sum(len(asked) for asked, _ in skills.MANNERS)


def test_no_phrase_stands_under_two_answers() -> None:
    phrases = [phrase for asked, _ in skills.MANNERS for phrase in asked]
    assert len(set(phrases)) == len(phrases)


def test_the_model_says_its_name() -> None:
    answers = dict.fromkeys(answer for _, answer in skills.MANNERS)
    assert any("tiny-recall" in answer for answer in answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_it_cannot_do_is_answered_with_not_knowing(seed: int) -> None:
    asked, answer = skills.strange(Random(seed))
    assert asked
    assert answer == "I do not know."


@pytest.mark.parametrize("name", sorted(skills.SKILLS))
def test_a_skill_gives_the_same_turn_for_the_same_seed(name: str) -> None:
    assert skills.SKILLS[name](Random(9)) == skills.SKILLS[name](Random(9))


def test_the_words_of_fixed_answers_are_single_tokens() -> None:
    words = build()
    answers = [skills.HELP, skills.UNKNOWN, skills.NOTED, *(answer for _, answer in skills.MANNERS)]
    pieces = {piece for answer in answers for piece in re.findall(r"[A-Za-z]+", answer)}
    assert {piece for piece in pieces if len(words.encode(piece).ids) > 1} == set()
