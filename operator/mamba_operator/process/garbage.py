"""How seldom the operator looks for garbage in cycles. Called once, when its process begins."""

import gc

THRESHOLDS = (7_000, 10, 10)
"""What watches hold is plain data, much of it, and stays: with the defaults (700, 10, 10) an eighth of the
operator's time went into walks through it."""


def collect_seldom() -> None:
    """What is there stays for good; what comes is looked at after ten times as many new objects."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
