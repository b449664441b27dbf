"""A process that stores bundles, and is killed at one of its system calls or holds a directory.

`python bundle_writer.py killed DIRECTORY` makes directories 1, 2, 3, … below DIRECTORY; in directory N a
child stores bundles and kills itself at its Nth system call that changes the directory, a write half done.
The last child has fewer calls and lives. `python bundle_writer.py hold DIRECTORY` holds a store until its
input ends.
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from bundle_world import SHAPE, disk_store, stored, tokens
from mamba_tier.bundle_shape import StoreSettings
from mamba_tier.bundle_store import BundleStore

DISK_BYTES = 44 << 10
"""A budget that some of the bundles below exceed, so that files are removed, too."""
PATHS = [(0, 8), (1, 20), (0, 36), (2, 8)]


def kill_at(number: int) -> None:
    """Kill this process at its system call of that number."""
    calls = count(1)

    def fatal(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) == number:
                if name == "writev":
                    first = arguments[1][0]
                    original(arguments[0], [first[: len(first) // 2]])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        return call

    for name in ("open", "writev", "rename", "replace", "unlink", "close"):
        setattr(os, name, fatal(name))


def store_bundles(directory: Path) -> None:
    store = BundleStore(
        SHAPE, StoreSettings(disk_bytes=DISK_BYTES, directory=directory, staging_bytes=1 << 20, sync=True)
    )
    for seed, depth in PATHS:
        stored(store, tokens(depth, seed))
    store.close()


def main() -> None:
    what, directory = sys.argv[1], Path(sys.argv[2])
    if what == "hold":
        store = disk_store(directory)
        print("open", flush=True)
        sys.stdin.read()
        store.close()
        return
    for number in count(1):
        child = os.fork()
        if not child:
            kill_at(number)
            store_bundles(directory / str(number))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            return


if __name__ == "__main__":
    main()
