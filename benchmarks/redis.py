"""A Redis for the time of a benchmark: a process of its own that keeps nothing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))

from redis_program import RedisProgram, redis_program


def program() -> RedisProgram:
    """Return the program that tests run, too. Raises FileNotFoundError: there is none."""
    if (redis := redis_program()) is None:
        raise FileNotFoundError("there is no redis-server: apt-get install redis-server")
    return redis


@contextmanager
def running_redis() -> Iterator[str]:
    """Run a new redis-server and yield its URL. Raises FileNotFoundError: there is none."""
    binary = program()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    memory_only = ("--save", "", "--appendonly", "no", "--loglevel", "warning")
    process = subprocess.Popen(
        (binary.path, "--bind", "127.0.0.1", "--port", str(port), *memory_only),
        env={**os.environ, **binary.environment},
    )
    try:
        while process.poll() is None:
            with socket.socket() as listener:
                if listener.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)
