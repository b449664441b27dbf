"""Generates training rows: a conversation, or a bare document that says its facts twice, cut to a length.

Called by `train`. Every row carries for each token whether it is part of an answer, because answers are what
the loss is about: everything else is random and cannot be foretold. Pure: randomness is a parameter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tokenizers import Tokenizer

from training.tiny_recall import facts, filler, skills
from training.tiny_recall.facts import Fact, Style
from training.tiny_recall.vocabulary import ASSISTANT, END, SYSTEM, USER

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are tiny-recall.",
    "Answer with one word.",
    "You are a helpful assistant. Answer questions about the facts.",
    "Answer only from the facts.",
)


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of what a row or a turn is."""

    bare: float
    """Rows that are a bare document."""
    idle: float
    """Rows of turns without any facts."""
    skill: float
    """Turns, between questions about facts, that are about another skill."""


@dataclass(slots=True)
class Row:
    """Token ids and, for each, whether it belongs to an answer."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)

    def add(self, text: str, answer: bool = False) -> None:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.ids += ids
        self.answers += [answer] * len(ids)

    def exchange(self, asked: str, answer: str) -> None:
        self.add(f"{USER}{asked}{END}{ASSISTANT}")
        self.add(f"{answer}{END}", answer=True)


def document(
    random: Random, tokenizer: Tokenizer, tokens: int, style: Style, taken: set[str]
) -> tuple[str, list[Fact]]:
    """Return facts with filler between them, about `tokens` tokens long."""
    known: list[Fact] = []
    pieces = [random.choice(facts.HEADERS)]
    length = 0
    filling = random.choice((0.0, 0.0, 0.1, 0.3))
    while length < tokens or not known:
        if random.random() < filling:
            piece = filler.sentence(random)
        else:
            known.append(facts.fact(random, taken))
            piece = facts.written(known[-1], style)
        piece += style.separator
        length += len(tokenizer.encode(piece).ids)
        pieces.append(piece)
    return "".join(pieces).removesuffix(style.separator), known


def rounds(random: Random, known: list[Fact]) -> Iterator[Fact]:
    """Yield every fact once in random order, then again: the next answer never needs a recent fact."""
    while True:
        yield from random.sample(known, len(known))


def bare(random: Random, tokenizer: Tokenizer, length: int) -> Row:
    """Return a document that goes on with facts it has stated already, each value an answer."""
    row = Row(tokenizer)
    style = random.choice(facts.STYLES)
    text, known = document(random, tokenizer, int(length * random.uniform(0.2, 0.6)), style, set())
    row.add(text + style.separator)
    before, after = style.template.split("{value}")
    asked = rounds(random, known)
    while len(row.ids) <= length:
        fact = next(asked)
        row.add(before.format(key=fact.key))
        row.add(fact.value + after + style.separator[:1], answer=True)
        row.add(style.separator[1:])
    return row


def skilled(random: Random, row: Row) -> None:
    name = random.choices(tuple(skills.SKILLS), weights=(8, 4, 3, 2, 1))[0]
    row.exchange(*skills.SKILLS[name](random))


def idle(random: Random, tokenizer: Tokenizer, length: int) -> Row:
    """Return turns that need no facts."""
    row = Row(tokenizer)
    if random.random() < 0.4:
        row.add(f"{SYSTEM}{random.choice(SYSTEM_PROMPTS)}{END}")
    while len(row.ids) <= length:
        skilled(random, row)
    return row


def conversation(random: Random, tokenizer: Tokenizer, length: int, mix: Mix) -> Row:
    """Return a document in the system prompt or a user turn and questions; at times more facts or a skill."""
    row = Row(tokenizer)
    style = random.choice(facts.STYLES)
    taken: set[str] = set()
    text, known = document(random, tokenizer, int(length * random.uniform(0.15, 0.75)), style, taken)
    place = random.random()
    if place < 0.25:
        prompt = random.choice(SYSTEM_PROMPTS) + "\n" if random.random() < 0.5 else ""
        row.add(f"{SYSTEM}{prompt}{text}{END}")
    else:
        if random.random() < 0.4:
            row.add(f"{SYSTEM}{random.choice(SYSTEM_PROMPTS)}{END}")
        if random.random() < 0.1:
            row.exchange(*skills.manners(random))
        if place < 0.6:
            row.exchange(text, skills.NOTED)
        else:
            first = random.choice(known)
            gap = random.choice(("\n", "\n\n", " "))
            row.exchange(f"{text}{gap}{facts.question(random, first.key, style)}", first.value)
    asked = rounds(random, known)
    while len(row.ids) <= length:
        draw = random.random()
        if draw < mix.skill:
            skilled(random, row)
        elif draw < mix.skill + 0.04:
            row.exchange(facts.question(random, facts.fact(random, set(taken)).key, style), skills.UNKNOWN)
        elif draw < mix.skill + 0.08:
            known.append(facts.fact(random, taken))
            row.exchange(random.choice(("", "Remember: ")) + facts.written(known[-1], style), skills.NOTED)
        elif draw < mix.skill + 0.10:
            row.exchange(filler.paragraph(random, 2), skills.NOTED)
        else:
            fact = next(asked)
            row.exchange(facts.question(random, fact.key, style), fact.value)
    return row


def row(random: Random, tokenizer: Tokenizer, length: int, mix: Mix) -> Row:
    """Return one training row of at least length + 1 tokens."""
    draw = random.random()
    if draw < mix.bare:
        return bare(random, tokenizer, length)
    if draw < mix.bare + mix.idle:
        return idle(random, tokenizer, length)
    return conversation(random, tokenizer, length, mix)
