"""Errors of the store of bundles.

TierError
├── DirectoryBusy      another process stores bundles in the directory
├── DirectoryForeign   a directory that holds files of others
├── DirectoryUnusable  a directory that cannot be created, read or written
├── SizeMismatch       buffers that do not have the sizes of the bundle; a ValueError
├── BadBudget          settings with which nothing can be stored; a ValueError
├── SessionDamaged     a session file that is no session, is damaged or ends early
└── SessionForeign     a session file of another model or layout

Those of the store are raised at the start and for wrong calls alone: a disk that fails later switches its
tier off, and a damaged record is a miss.
"""


class TierError(Exception):
    """The base of all errors. The message says what to do."""


class DirectoryBusy(TierError):
    """A directory that another process has locked."""


class DirectoryForeign(TierError):
    """A directory with files that no store of bundles wrote."""


class DirectoryUnusable(TierError):
    """A directory that the operating system refuses."""


class SizeMismatch(TierError, ValueError):
    """Buffers, tokens or depths that do not fit the shape of the bundles."""


class BadBudget(TierError, ValueError):
    """Byte budgets with which no bundle can be stored."""


class SessionDamaged(TierError):
    """A file that is no session, or not all of one, or whose bytes have changed."""


class SessionForeign(TierError):
    """A session whose state this engine cannot use."""
