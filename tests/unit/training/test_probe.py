"""Probes: the fact stands as far away as asked, is said once, and the answer is its value."""

from random import Random

import pytest

from training.tiny_recall import probe, tokenizer
from training.tiny_recall.skills import SKILLS

WORDS = tokenizer.build()


@pytest.mark.parametrize("distance", [64, 256, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_the_prompt_is_at_least_as_long_as_the_distance(distance: int, seed: int) -> None:
    asked = probe.recall(Random(seed), WORDS, distance)
    assert distance < len(WORDS.encode(asked.prompt).ids) < distance + 120


@pytest.mark.parametrize("seed", range(30))
def test_the_answer_stands_at_the_start_of_the_document(seed: int) -> None:
    asked = probe.recall(Random(seed), WORDS, 256)
    ids = WORDS.encode(asked.prompt).ids
    head = WORDS.decode(ids[: len(ids) - 256], skip_special_tokens=False)
    assert asked.answer in head


@pytest.mark.parametrize("seed", range(30))
def test_the_prompt_ends_where_the_assistant_begins(seed: int) -> None:
    assert probe.recall(Random(seed), WORDS, 64).prompt.endswith("<|end|><|assistant|>")


def test_half_of_the_questions_come_in_a_turn_of_their_own() -> None:
    random = Random(0)
    prompts = [probe.recall(random, WORDS, 64).prompt for _ in range(200)]
    own = sum(prompt.count("<|user|>") == 2 for prompt in prompts)
    assert 70 <= own <= 130


def test_the_same_seed_gives_the_same_probe() -> None:
    assert probe.recall(Random(5), WORDS, 128) == probe.recall(Random(5), WORDS, 128)


@pytest.mark.parametrize("name", sorted(SKILLS))
def test_a_skill_is_asked_in_one_user_turn(name: str) -> None:
    asked = probe.skill(Random(1), name)
    assert asked.prompt.startswith("<|user|>")
    assert asked.prompt.count("<|user|>") == 1
    assert asked.answer
