"""What the state cache can fail with.

CacheError
└── LedgerViolation   an invariant of the ledger does not hold: a defect of ours, never of the input

A shortage is no error: allocation answers None and the sequence waits. A sequence larger than the whole arena
is refused before it gets here.
"""


class CacheError(Exception):
    """Anything below; nobody raises it itself."""


class LedgerViolation(CacheError):
    """Some page or slot has no owner, or two. The message names it and the invariant."""
