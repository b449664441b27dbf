"""Python's search for garbage cycles, kept from delaying running answers.

A full search visits every object, so it takes longer the more is cached: with 15,000 checkpoints it stopped
the engine for 0.1 to 0.2 s. A search of young objects is no better where old objects go as new ones come:
Python counts the difference, so tens of thousands are young before it searches. The engine creates no cycles
that live long; reference counts free what it drops. Called by the engine process alone.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER_COLLECT = 1 << 30
"""Collections of the middle generation before a full one: more than a process ever makes."""


@contextmanager
def without_searches() -> Iterator[None]:
    """Search for no cycles in the block, which imports modules.

    Each search would visit all objects that exist, and modules stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def never_search_old_objects() -> None:
    """Exclude all existing objects from later searches; called once, when the engine has booted."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER_COLLECT)


def search_new_objects() -> None:
    """Search for cycles among the objects of the last step; the rest becomes old. Called after each step."""
    gc.collect(1)
