"""What the state cache can fail with.

CacheError
├── LedgerViolation   an invariant of the ledger does not hold: a defect of ours, never of the input
└── NeverFits         a sequence needs more than the whole arena: the request is refused, the rest goes on

A shortage is no error: allocation answers None and the sequence waits.
"""


class CacheError(Exception):
    """Base."""


class LedgerViolation(CacheError):
    """Some page or slot has no owner, or two. The message names it and the invariant."""


class NeverFits(CacheError):
    """The sequence could not run even alone; the message carries the numbers."""
