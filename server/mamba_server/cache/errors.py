"""Errors of the state cache.

CacheError
└── LedgerViolation   an owner, lock, count or life-cycle rule is violated: a bug, never the client's fault
"""


class CacheError(Exception):
    """Base of the errors below; never raised itself."""


class LedgerViolation(CacheError):
    """A violated invariant, such as a page with two owners: a bug, never the client's fault.

    The message names the invariant, and the page, slot, node or row.
    """
