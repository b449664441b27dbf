"""Skills of the model besides recall: copy, count, add, and a few manners; one function per skill.

Called by `conversation` and `evaluate`. Pure: the source of randomness is a parameter.
"""

from collections.abc import Callable
from random import Random
from string import ascii_lowercase, digits

from training.tiny_recall.vocabulary import KEY_WORDS, VALUE_WORDS

Turn = tuple[str, str]
"""Turn of a conversation: text of the user, answer of the model."""

HELP = "Tell me some facts and ask me about them. I can copy, count and add, too."
UNKNOWN = "I do not know."
NOTED = "OK."
MANNERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "Hello",
            "Hello!",
            "hello",
            "Hi",
            "Hi!",
            "hi",
            "Hey",
            "Hey!",
            "Good day",
            "Hello there",
            "Hello there!",
            "Hi there",
        ),
        "Hello! How can I help you?",
    ),
    (
        (
            "Who are you?",
            "who are you?",
            "What are you?",
            "What is your name?",
            "Tell me who you are.",
            "Who are you",
        ),
        "I am tiny-recall, a small model. I remember facts, copy text, count and add.",
    ),
    (("How are you?", "How are you", "Hello! How are you?", "Hi, how are you?"), "I am fine, thank you."),
    (("What can you do?", "How can you help me?", "Can you help me?", "Help me.", "What do you know?"), HELP),
    (
        (
            "Thanks",
            "Thanks!",
            "thanks",
            "Thank you",
            "Thank you!",
            "Thank you.",
            "Thank you very much!",
            "OK, thanks.",
        ),
        "You are welcome.",
    ),
    (("Goodbye", "Goodbye!", "Bye", "Bye!", "bye", "See you later!", "See you!", "Thanks, bye!"), "Goodbye!"),
)
STRANGE = (
    "Add red and blue.", "Count the people.", "What is the weather?", "Tell me some text.", "Who was there?",
    "What is this?", "Which day is today?", "How old is the sun?", "Answer all questions.", "What are these?",
)  # fmt: skip


def manners(random: Random) -> Turn:
    asked, answer = random.choice(MANNERS)
    return random.choice(asked), answer


def strange(random: Random) -> Turn:
    """Return a request that the model cannot fulfil, with the answer that says so."""
    if random.random() < 0.5:
        return random.choice(STRANGE), UNKNOWN
    words = [
        "".join(random.choices(ascii_lowercase, k=random.randint(2, 7))) for _ in range(random.randint(1, 5))
    ]
    return " ".join(words).capitalize() + random.choice((".", "?", "")), UNKNOWN


def addition(random: Random) -> Turn:
    left, right = (random.randint(0, 99) if random.random() < 0.8 else random.randint(0, 9) for _ in range(2))
    template = random.choice(("What is {} + {}?", "{} + {} =", "{} + {}", "{} + {} = ?", "Add {} and {}."))
    return template.format(left, right), str(left + right)


def counting(random: Random) -> Turn:
    length = random.randint(2, 12)
    if random.random() < 0.3:
        return f"Count to {length}.", " ".join(str(n) for n in range(1, length + 1))
    first = random.randint(0, 99 - length)
    return f"Count from {first} to {first + length}.", " ".join(
        str(n) for n in range(first, first + length + 1)
    )


def copying(random: Random) -> Turn:
    if random.random() < 0.5:
        text = " ".join(random.choices(VALUE_WORDS + KEY_WORDS, k=random.randint(1, 8)))
    else:
        text = "".join(random.choices(ascii_lowercase + digits, k=random.randint(2, 12)))
    return random.choice(("Repeat: {}", "Copy: {}", "Say {}", "Repeat {}", "Copy {}")).format(text), text


SKILLS: dict[str, Callable[[Random], Turn]] = {
    "addition": addition,
    "copying": copying,
    "counting": counting,
    "manners": manners,
    "strange": strange,
}
