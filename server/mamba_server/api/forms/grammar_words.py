"""What llguidance says of a form, in words that tell what to change. Pure."""

import re

OVERLAP = "coerce_one_of"
"""In what the library says of a `oneOf` whose branches cannot be told apart."""
_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_WORDS = (
    (OVERLAP, "oneOf: its branches overlap, or cannot be told apart; use anyOf"),
    (
        "lexer precomputation failed",
        "the expression takes too long to be prepared; make it simpler, with fewer repetitions",
    ),
    ("increase limits", "it is too large to be followed; make it smaller"),
    ("too many expressions", "an expression of it is too complex; make it simpler"),
    ("Too many items", "it is ambiguous in too many ways; make it simpler"),
    ("initial_lexer_fuel", "an expression of it is too complex; make it simpler"),
    ("NoExtensionBias", "no text has this form: a rule, or a reference, leads back to itself and never ends"),
    ("not JSON serializable", "it has a whole number of more than 64 bits; write a smaller one"),
    ("max_grammar_size", "it is too large to be followed; make it smaller"),
)
"""A part of the library's words, and ours: it names options that no client can give."""


def in_our_words(failure: str) -> str:
    """The failure, without advice that nobody can take."""
    if unknown := _KEYS.search(failure):
        keys = unknown[1].replace('"', "'")
        return f"the schema has keys that cannot be enforced: {keys}; leave them out"
    for part, words in _WORDS:
        if part in failure:
            return words
    return failure
