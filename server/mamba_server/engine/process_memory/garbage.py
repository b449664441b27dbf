"""Python's search for garbage cycles, kept out of the way of running answers.

A full search looks at every object there is, so it takes longer the more is cached: with 15,000 checkpoints
it stopped the engine for 0.1 to 0.2 s. A search of young objects is no better where old ones go as new ones
come: Python counts the difference, so tens of thousands are young before it looks. The engine makes no cycles
that live long; what it drops is freed by its reference counts. Called by the engine process alone.
"""

import gc

SELDOM = 1 << 30
"""Collections of the middle generation before a full one: never, as long as a process lives."""


def never_search_old_objects() -> None:
    """No search from now on looks at what is old: called once, when the engine has booted."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SELDOM)


def search_new_objects() -> None:
    """Look for cycles among what the last step made; what is left is old. Called after each step."""
    gc.collect(1)
