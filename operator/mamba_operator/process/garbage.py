"""Settings of Python's cyclic garbage collector for the operator. Called once, when its process begins."""

import gc

THRESHOLDS = (7_000, 10, 10)
"""Thresholds of the three generations. Watches hold much long-lived plain data: with the defaults (700, 10,
10) the collector took an eighth of the operator's time."""


def collect_seldom() -> None:
    """Freeze the existing objects and raise the collection threshold tenfold."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
