"""Errors of the store of bundles.

TierError
├── DirectoryBusy      another process stores bundles in the directory
├── DirectoryForeign   a directory that holds files of others
├── DirectoryUnusable  a directory that cannot be created, read or written
├── SizeMismatch       buffers that do not have the sizes of the bundle; a ValueError
├── BadBudget          settings with which nothing can be stored; a ValueError
├── SessionDamaged     a session file that is no session, is damaged or ends early
└── SessionForeign     a session file of another model or layout

The store raises its errors only at the start and for wrong calls. A disk that fails later makes the store
switch the disk tier off, and a damaged record counts as not stored.
"""


class TierError(Exception):
    """Base class of the errors of the store. The message says what went wrong."""


class DirectoryBusy(TierError):
    """Another process has locked the directory."""


class DirectoryForeign(TierError):
    """The directory holds files of something other than a store of bundles."""


class DirectoryUnusable(TierError):
    """The operating system does not let the store create, read or write the directory."""


class SizeMismatch(TierError, ValueError):
    """The sizes of buffers, tokens or depths do not fit the shape of the store's bundles."""


class BadBudget(TierError, ValueError):
    """The budgets or the directory in the settings are such that nothing can be stored."""


class SessionDamaged(TierError):
    """The file is no session file, ends too early, or its bytes have changed."""


class SessionForeign(TierError):
    """The session file is of another model or layout, so this engine cannot use its state."""
