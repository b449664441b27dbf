"""Errors of the state cache.

CacheError
└── LedgerViolation   an owner, lock, count or life-cycle rule is violated: a bug, never the client's fault
"""


class CacheError(Exception):
    """Base of the errors below; never raised itself."""


class LedgerViolation(CacheError):
    """A page or slot without an owner, or with two. The message names it and the invariant."""
