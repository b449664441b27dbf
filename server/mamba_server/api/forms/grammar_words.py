"""Failures of llguidance, translated into messages that say what to change. Pure."""

import re

OVERLAP = "coerce_one_of"
"""Part of the library's message about a `oneOf` whose branches cannot be distinguished."""
_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_MESSAGES = (
    (OVERLAP, "the branches of oneOf overlap, or cannot be distinguished; use anyOf"),
    (
        "lexer precomputation failed",
        "an expression takes too long to compile; make it simpler, with fewer repetitions",
    ),
    ("increase limits", "the form is too large to be followed; make it smaller"),
    ("too many expressions", "an expression is too complex; make it simpler"),
    ("Too many items", "the form is ambiguous in too many ways; make it simpler"),
    ("initial_lexer_fuel", "an expression is too complex; make it simpler"),
    ("NoExtensionBias", "no text has this form: a rule or a reference leads back to itself without an end"),
    ("not JSON serializable", "the schema has an integer of more than 64 bits; use a smaller one"),
    ("max_grammar_size", "the form is too large to be followed; make it smaller"),
)
"""Pairs of a part of the library's message and our own; the library names options that no client can set."""


def readable_failure(failure: str) -> str:
    """Return the message of a failure, without advice that clients cannot follow."""
    if unknown := _KEYS.search(failure):
        keys = unknown[1].replace('"', "'")
        return f"the schema has keys that cannot be enforced: {keys}; leave them out"
    for part, message in _MESSAGES:
        if part in failure:
            return message
    return failure
