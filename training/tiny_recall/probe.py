"""Probes: a prompt with the one right answer, for recall at a distance and for every other skill.

Called by `evaluate`, `train` and the tests. Pure: the source of randomness is a parameter.
"""

from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer

from training.tiny_recall import facts, filler, skills
from training.tiny_recall.vocabulary import ASSISTANT, END, USER


@dataclass(frozen=True, slots=True)
class Probe:
    prompt: str
    """Chat text with its special tokens, up to and with the generation prompt."""
    answer: str
    """Text that greedy decoding must produce before it ends the turn, to the letter."""


def recall(random: Random, tokenizer: Tokenizer, distance: int) -> Probe:
    """Return a fact, then about `distance` tokens of other facts and filler, then the question about it.

    The distance is counted from the end of the fact to the start of the answer. Half of the time the document
    and the question are in one turn, half of the time in two.
    """
    style = random.choice(facts.STYLES)
    taken: set[str] = set()
    target = facts.fact(random, taken)
    filling = random.choice((0.0, 0.1, 0.3))
    question = facts.question(random, target.key, style)
    if random.random() < 0.5:
        asked = f"\n{question}{END}{ASSISTANT}"
    else:
        asked = f"{END}{ASSISTANT}{skills.NOTED}{END}{USER}{question}{END}{ASSISTANT}"
    before = [facts.written(facts.fact(random, taken), style) for _ in range(random.randint(0, 2))]
    after: list[str] = []
    length = len(tokenizer.encode(asked).ids)
    while length < distance:
        noise = random.random() < filling
        piece = filler.sentence(random) if noise else facts.written(facts.fact(random, taken), style)
        length += len(tokenizer.encode(style.separator + piece).ids)
        after.append(piece)
    text = style.separator.join([*before, facts.written(target, style), *after])
    return Probe(f"{USER}{random.choice(facts.HEADERS)}{text}{asked}", target.value)


def skill(random: Random, name: str) -> Probe:
    asked, answer = skills.SKILLS[name](random)
    return Probe(f"{USER}{asked}{END}{ASSISTANT}", answer)
