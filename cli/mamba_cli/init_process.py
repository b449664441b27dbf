"""What the first process of a container owes: to end when it is told to, from its first moment on.

The kernel drops SIGTERM to process 1 while it has no handler, and servers install theirs after seconds of
imports. Called by `main` at its start, for containers that are started by hand: in our pods the first process
is another.
"""

import os
import signal
import sys
from types import FrameType


def end_on_sigterm(pid: int | None = None) -> None:
    """Makes SIGTERM end process 1 as it ends any other; servers replace this by their draining.

    `pid` is the caller's own unless told otherwise. Other processes are left as they are.
    """
    if (os.getpid() if pid is None else pid) == 1:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
