"""`folder_lock`: one process at a time writes to a folder of the model cache."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LOCK = "mambaserve-download.lock"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


@contextlib.contextmanager
def folder_lock(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Create the folder and lock it against other downloads.

    The kernel releases the lock when the process ends. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems have no locks; copies appear whole there, too.
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(lock)
