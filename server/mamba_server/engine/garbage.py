"""Python's search for garbage cycles, kept out of the way of running answers.

A full search looks at every object there is, so it takes longer the more is cached: with 15,000 checkpoints
it stopped the engine for 0.1 to 0.2 s. The engine makes no cycles that live long; what it drops is freed by
its reference counts. The engine process calls this once, when it has booted.
"""

import gc

SELDOM = 1 << 30
"""Collections of the middle generation before a full one: never, as long as a process lives."""


def search_young_objects_alone() -> None:
    """Look from now on for cycles among new objects only: that takes as long however much is cached."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SELDOM)
