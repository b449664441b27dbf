"""A Redis for the time of a benchmark: a process of its own that keeps nothing."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_redis() -> Iterator[str]:
    """The URL of a fresh redis-server: the one on the PATH, else the virtual environment's.

    Raises:
        FileNotFoundError: there is none.
    """
    own = Path(sys.executable).with_name("redis-server")
    binary = shutil.which("redis-server") or (str(own) if own.exists() else None)
    if binary is None:
        raise FileNotFoundError("there is no redis-server: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    memory_only = ("--save", "", "--appendonly", "no", "--loglevel", "warning")
    process = subprocess.Popen((binary, "--bind", "127.0.0.1", "--port", str(port), *memory_only))
    try:
        while process.poll() is None:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)
