"""Text without facts that stands between and after facts, so that recall has a distance to cross.

Called by `conversation` and `evaluate`. Pure: the source of randomness is a parameter.
"""

from random import Random
from string import ascii_letters

SENTENCES = (
    "The weather is fine today.",
    "It was a warm day and the sun was on the road.",
    "The people walked home in the rain.",
    "There is a long road and a hill.",
    "The old street was warm that night.",
    "We looked at the new street and went home.",
    "It was night and the wind was warm.",
    "Some people walked on the old road in the sun.",
    "Then we went home.",
    "A new day is there.",
    "People looked at the hill and it was day.",
    "It is warm today and we walked to the hill.",
    "There was wind and there was rain.",
    "The night was long, and the day was too.",
)


def sentence(random: Random) -> str:
    """Return one sentence; one in ten is made of words that the tokenizer must spell."""
    if random.random() < 0.9:
        return random.choice(SENTENCES)
    words = [
        "".join(random.choices(ascii_letters, k=random.randint(2, 5))) for _ in range(random.randint(2, 4))
    ]
    return " ".join(words).capitalize() + "."


def paragraph(random: Random, sentences: int) -> str:
    return " ".join(sentence(random) for _ in range(sentences))
