"""Facts: keys with values, how a document writes them down and how a question asks for one.

Called by `conversation` and `evaluate`. Pure: the source of randomness is a parameter.
"""

from dataclasses import dataclass
from random import Random

from training.tiny_recall.vocabulary import KEY_WORDS, VALUE_WORDS

CODE_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Fact:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Style:
    """Style of one document's facts: `template` has {key} and {value}, `separator` parts two of them."""

    template: str
    separator: str
    verb: str
    """Words between key and value when a question is a beginning to be completed."""


STYLES = (
    Style("{key}: {value}", "\n", ":"),
    Style("{key} = {value}", "\n", " ="),
    Style("{key} is {value}.", "\n", " is"),
    Style("{key} = {value}", ", ", " ="),
    Style("The {key} is {value}.", " ", " is"),
    Style("- {key}: {value}", "\n", ":"),
    Style("{key}: {value}", "; ", ":"),
)
HEADERS = (
    "",
    "Facts:\n",
    "Remember:\n",
    "Remember these facts.\n",
    "Here are some facts.\n",
    "Remember this: ",
)
QUESTIONS = (
    "What is {key}?",
    "What is the {key}?",
    "{key}?",
    "{key}{verb}",
    "What is the value of {key}?",
    "Tell me the value of {key}.",
    "Recall {key}.",
    "Which value has {key}?",
)


def key(random: Random) -> str:
    """Draw a word (half of all), a word or a letter with a number, or a code of three characters."""
    draw = random.random()
    if draw < 0.5:
        return random.choice(KEY_WORDS)
    if draw < 0.8:
        return f"{random.choice(KEY_WORDS)} {random.randint(1, 99)}"
    if draw < 0.92:
        return f"{random.choice('ABCDEFGHKLMNPRSTVWX')}{random.randint(1, 99)}"
    return "".join(random.choices(CODE_CHARACTERS, k=3))


def value(random: Random) -> str:
    """Draw a word (most), a number of up to four digits, two words, or a code of three characters."""
    draw = random.random()
    if draw < 0.65:
        return random.choice(VALUE_WORDS)
    if draw < 0.8:
        return str(random.randint(0, 10 ** random.randint(1, 4) - 1))
    if draw < 0.9:
        return f"{random.choice(VALUE_WORDS)} {random.choice(VALUE_WORDS)}"
    return "".join(random.choices(CODE_CHARACTERS, k=3))


def fact(random: Random, taken: set[str]) -> Fact:
    """Draw a fact whose key is not in `taken`; the key is added to `taken`."""
    while True:
        candidate = key(random)
        if candidate not in taken:
            taken.add(candidate)
            return Fact(candidate, value(random))


def written(fact: Fact, style: Style) -> str:
    return style.template.format(key=fact.key, value=fact.value)


def question(random: Random, key: str, style: Style) -> str:
    return random.choice(QUESTIONS).format(key=key, verb=style.verb)
