"""`OtherLoad`: CPU use of other processes during a measurement, to exclude disturbed moments."""

import asyncio
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PERIOD = 0.5
"""Seconds between two samples: the kernel counts in hundredths of a second for each process."""
TICK = os.sysconf("SC_CLK_TCK")


def tree() -> list[int]:
    """Return the ids of this process and of its running descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    pids = [os.getpid()]
    for pid in pids:
        pids += children[pid]
    return pids


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time of these processes so far; ended processes count nothing."""
    seconds = 0.0
    for pid in pids:
        if fields := _fields(pid):
            seconds += (int(fields[11]) + int(fields[12])) / TICK
    return seconds


def machine_seconds() -> float:
    """Return the CPU time of the whole machine so far, including time taken by its host."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(more)) / TICK


def _fields(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` behind the name in parentheses, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@dataclass(slots=True)
class OtherLoad:
    """Samples every `PERIOD` seconds: monotonic times, and cores used by others since the sample before."""

    times: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)

    def peak(self, begin: float, end: float) -> float:
        """Return the most cores that others used in a sample period of [begin, end] (monotonic seconds).

        Returns infinity where the samples do not cover the interval.
        """
        first = bisect_left(self.times, begin)
        last = bisect_left(self.times, end)
        if not first or last == len(self.times):
            return float("inf")
        return max(self.cores[first : last + 1])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sample during the block; processes started meanwhile count as others. Needs a running loop."""
        task = asyncio.ensure_future(self._watch(tree()))
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self, own: Sequence[int]) -> None:
        then, others = time.monotonic(), machine_seconds() - cpu_seconds(own)
        while True:
            await asyncio.sleep(PERIOD)
            now, seen = time.monotonic(), machine_seconds() - cpu_seconds(own)
            self.times.append(now)
            self.cores.append(max(0.0, seen - others) / (now - then))
            then, others = now, seen
