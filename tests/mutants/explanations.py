"""Defects of explanations: a client would read what is not its own, or be told what the cache did not do."""

from seeded import Mutant

NEAREST = ("tests/unit/cache/test_nearest_prefix.py",)
MUTANTS = (
    Mutant(
        name="the text of another key is shown",
        keeps="Cached text is shown to the client whose request brought it, and to no other.",
        where="cache.node:Node.is_shown_to",
        old="(self.client or '') == client",
        new="True",
        tests=NEAREST,
    ),
    Mutant(
        name="the upper half of a split node loses its owner",
        keeps="A split keeps the owner of the text in both halves.",
        where="cache.tree:RadixTree._split",
        old="upper.client = child.client",
        new="pass",
        tests=NEAREST,
    ),
    Mutant(
        name="the depth ends at the last whole page in common",
        keeps="The depth in a client's own text is exact to the token.",
        where="cache.tree:RadixTree.nearest",
        old="depth + common",
        new="depth",
        tests=NEAREST,
    ),
    Mutant(
        name="an explanation says that another salt has the text",
        keeps="A salt learns nothing of what others have cached.",
        where="engine.scheduling.prefix_explanation:_reason",
        old="if cause in _REASONS:\n    ...",
        new='if cause == "salt_differs":\n    return "parted"\nif cause in _REASONS:\n    ...',
        tests=NEAREST,
    ),
    Mutant(
        name="an explanation is lost while a client reads slowly",
        keeps="Joined deltas keep what the first of them said.",
        where="api.engine_link.inbox:join",
        old="first.explanation or second.explanation",
        new="second.explanation",
        tests=("tests/unit/api/test_inbox.py",),
    ),
)
