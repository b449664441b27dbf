"""Choice of the redis-server that tests and benchmarks run.

The one on the PATH, else Debian's package (Redis 7), else the wheel's in the virtual environment (Redis 6.2,
without TLS).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from debian_packages import PackageMissing, unpacked

WANTED = 7
"""Major version that the product is promised for; an older one is told of where results are read."""


@dataclass(frozen=True, slots=True)
class RedisProgram:
    """A binary that starts here."""

    path: str
    environment: Mapping[str, str]
    """Variables to add to the environment of this process."""
    version: str
    """Version that the program reports."""
    instead: str = ""
    """Why it is not one of the wanted version."""

    def __str__(self) -> str:
        return f"{self.version} ({self.path})" + (f": {self.instead}" if self.instead else "")


@cache
def redis_program() -> RedisProgram | None:
    """Return the first of the three that reports its version; None: there is none."""
    reasons: list[str] = []
    for path, environment in _places(reasons):
        try:
            output = subprocess.run(
                [path, "--version"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            reasons.append(f"{path} does not start: {error}")
            continue
        if match := re.search(r"v=(\d+)(\.\S+)", output):
            old = int(match[1]) < WANTED
            return RedisProgram(path, environment, "".join(match.groups()), "; ".join(reasons) if old else "")
    return None


def _places(reasons: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    if on_path := shutil.which("redis-server"):
        yield on_path, {}
    try:
        folder = unpacked("redis-tools", "redis-server", "libatomic1", "libjemalloc2", "liblzf1")
        libraries = ":".join(str(each) for each in sorted((folder / "usr/lib").glob("*-linux-gnu")))
        yield str(folder / "usr/bin/redis-server"), {"LD_LIBRARY_PATH": libraries}
    except PackageMissing as missing:
        reasons.append(str(missing))
    own = Path(sys.executable).with_name("redis-server")
    if own.exists():
        yield str(own), {}
