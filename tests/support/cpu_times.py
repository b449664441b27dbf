"""Processor seconds of each folder and file of tests, including the processes that tests start.

A pytest plugin: `--cpu-times` prints the sums at the end of the run, of all its workers together. Time of a
processor says the same on a busy machine as on an idle one, which the duration of a test does not.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import shared_imports

COLLECTION = "(imports and collection)"
SHARED_IMPORTS = "(imports of the fork servers)"
END = "(end of the processes)"
TICKS = os.sysconf("SC_CLK_TCK")
FILES_SHOWN = 40
before_fork: dict[str, float] = {}
"""Seconds of the process that this one was forked from, by row; only in the first of several."""


def total() -> float:
    """Return the seconds that this process and all that it has started have used so far.

    The fork servers that it shares the imports of are no children of it, and count like such.
    """
    used = 0.0
    for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(whose)
        used += usage.ru_utime + usage.ru_stime
    return used + sum(_running([os.getpid()], shared_imports.forks))


def of_process(process: int) -> float:
    """Return the seconds of a process and its descendants so far."""
    return sum(_running([], [process]))


def _running(parents: Collection[int], others: Collection[int]) -> Iterator[float]:
    """Yield the seconds of each of the others and of each descendant that still runs.

    Each with the seconds of its own descendants that have ended.
    """
    started: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended since
        process, seconds = int(folder.name), sum(map(int, fields[11:15])) / TICKS
        if process in others:
            yield seconds
        started[int(fields[1])].append((process, seconds))
    waiting = [*parents, *others]
    while waiting:
        for process, seconds in started[waiting.pop()]:
            waiting.append(process)
            yield seconds


class CpuTimes:
    """The seconds of each file in one process of pytest; the controller of several adds theirs up."""

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        """Start; before: seconds by row that were used for all workers elsewhere."""
        self.files: dict[str, float] = defaultdict(float, before or {})
        self._file = COLLECTION
        self._before = 0.0

    def turn_to(self, file: str) -> None:
        """Book what was used since the last call on the file before, and the time from now on `file`."""
        if file != self._file:
            now = total()
            self.files[self._file] += max(now - self._before, 0)
            self._file, self._before = file, now

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.turn_to(nodeid.partition("::")[0])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.turn_to(END)
        self.turn_to("")
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_times"] = dict(self.files)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in table(self.files):
            terminalreporter.write_line(line)


class WorkersCpuTimes(CpuTimes):
    """Printer of the sums in the controller of several workers, which runs no test itself."""

    def turn_to(self, file: str) -> None: ...

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for file, seconds in (getattr(node, "workeroutput", None) or {}).get("cpu_times", {}).items():
            self.files[file] += seconds


def table(files: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of the summary: every folder, then the files that cost most."""
    folders: dict[str, float] = defaultdict(float)
    for file, seconds in files.items():
        folders[str(Path(file).parent) if "/" in file else file] += seconds
    yield f"===== CPU seconds of {sum(files.values()):.0f}, by folder"
    yield from _lines(folders, len(folders))
    yield f"===== CPU seconds of the {FILES_SHOWN} files that use most"
    yield from _lines(files, FILES_SHOWN)


def _lines(named: Mapping[str, float], most: int) -> Iterator[str]:
    ordered = sorted(named.items(), key=lambda each: -each[1])[:most]
    yield from (f"{seconds:9.1f}  {name}" for name, seconds in ordered)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", action="store_true", help="print the CPU seconds of each folder and file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-times"):
        workers = config.getoption("numprocesses", 0) and not hasattr(config, "workerinput")
        config.pluginmanager.register(
            WorkersCpuTimes() if workers else CpuTimes(before_fork), "cpu-times-sums"
        )
