"""Training rows: answers are marked exactly and can be known from what stands before."""

import re
from random import Random

import pytest

from training.tiny_recall import conversation, facts, skills, tokenizer
from training.tiny_recall.conversation import Mix, Row

WORDS = tokenizer.build()
MIX = Mix(bare=0.0, idle=0.0, skill=0.2)


def text_of(ids: list[int]) -> str:
    return str(WORDS.decode(ids, skip_special_tokens=False))


def marked(row: Row) -> list[str]:
    """Return the runs of tokens that are marked as answers, as text."""
    runs: list[list[int]] = []
    before = False
    for token, answer in zip(row.ids, row.answers, strict=True):
        if answer and not before:
            runs.append([])
        if answer:
            runs[-1].append(token)
        before = answer
    return [text_of(run) for run in runs]


@pytest.mark.parametrize("length", [64, 256, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_a_row_is_longer_than_its_length_and_marks_every_token(length: int, seed: int) -> None:
    row = conversation.row(Random(seed), WORDS, length, Mix(bare=0.4, idle=0.3, skill=0.1))
    assert len(row.ids) == len(row.answers) > length


def test_the_same_seed_gives_the_same_row_and_another_does_not() -> None:
    first, second, other = (conversation.row(Random(seed), WORDS, 128, MIX) for seed in (1, 1, 2))
    assert first.ids == second.ids
    assert first.ids != other.ids


@pytest.mark.parametrize("seed", range(20))
def test_exactly_what_the_assistant_says_is_marked(seed: int) -> None:
    row = conversation.conversation(Random(seed), WORDS, 256, MIX)
    said = re.findall(r"<\|assistant\|>(.*?<\|end\|>)", text_of(row.ids), flags=re.DOTALL)
    assert marked(row) == said


@pytest.mark.parametrize("seed", range(20))
def test_every_recalled_value_was_written_before_it_is_asked(seed: int) -> None:
    row = conversation.conversation(Random(seed), WORDS, 256, Mix(bare=0.0, idle=0.0, skill=0.0))
    text = text_of(row.ids)
    for match in re.finditer(r"<\|user\|>([^<]*)<\|end\|><\|assistant\|>([^<]*)<\|end\|>", text):
        answer = match.group(2)
        polite = {answer for _, answer in skills.MANNERS}
        if answer in {skills.NOTED, skills.UNKNOWN, *polite}:
            continue
        assert answer in text[: match.start(2)]


@pytest.mark.parametrize("seed", range(20))
def test_a_bare_document_marks_only_values_that_it_said_before(seed: int) -> None:
    row = conversation.bare(Random(seed), WORDS, 256)
    text, answers = text_of(row.ids), marked(row)
    assert answers
    assert "<|" not in text
    for answer in answers:
        assert text.count(answer.rstrip("\n.,; ")) >= 2


@pytest.mark.parametrize("seed", range(10))
def test_an_idle_row_has_skills_and_no_facts(seed: int) -> None:
    text = text_of(conversation.idle(Random(seed), WORDS, 256).ids)
    assert "Remember" not in text
    assert text.count("<|assistant|>") >= 3


def test_rows_come_in_the_shares_of_the_mix() -> None:
    random = Random(0)
    rows = [conversation.row(random, WORDS, 64, Mix(bare=0.5, idle=0.2, skill=0.1)) for _ in range(400)]
    bare = sum("<|user|>" not in text_of(row.ids) for row in rows)
    assert 160 <= bare <= 240


def test_a_document_has_about_the_length_asked_and_its_facts_in_it() -> None:
    style = facts.STYLES[0]
    text, known = conversation.document(Random(3), WORDS, 400, style, set())
    assert 380 <= len(WORDS.encode(text).ids) <= 460
    assert all(facts.written(fact, style) in text for fact in known)


def test_a_document_of_no_length_still_has_one_fact() -> None:
    _, known = conversation.document(Random(3), WORDS, 0, facts.STYLES[0], set())
    assert len(known) == 1


def test_each_round_asks_for_every_fact_once() -> None:
    known = [facts.Fact(str(number), "red") for number in range(10)]
    asked = conversation.rounds(Random(0), known)
    for _ in range(3):
        assert sorted(next(asked).key for _ in known) == sorted(fact.key for fact in known)


def test_facts_stand_in_the_system_prompt_of_some_conversations_and_in_user_turns_of_others() -> None:
    texts = [text_of(conversation.conversation(Random(seed), WORDS, 128, MIX).ids) for seed in range(60)]
    first_turns = [text.split("<|end|>")[0] for text in texts]
    system = sum(turn.startswith("<|system|>") and len(turn) > 90 for turn in first_turns)
    assert 5 <= system <= 30


def test_a_question_about_an_unknown_key_is_answered_with_not_knowing() -> None:
    texts = [text_of(conversation.conversation(Random(seed), WORDS, 512, MIX).ids) for seed in range(10)]
    assert any("<|assistant|>I do not know.<|end|>" in text for text in texts)
