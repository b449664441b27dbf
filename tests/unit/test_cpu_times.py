"""The CPU seconds of a run are those of its processes too, booked on the file whose test used them."""

import subprocess
import sys

import pytest

import cpu_times
from cpu_times import COLLECTION, CpuTimes, of_process, table, total

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_process_counts_while_it_runs_and_when_it_has_ended() -> None:
    before = total()
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        running = total() - before
        alone = of_process(busy.pid)
        busy.communicate(b"\n")
    assert running > 0.25
    assert alone > 0.25
    assert total() - before > 0.25


def test_what_is_used_is_booked_on_the_file_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 4.0, 4.5])
    monkeypatch.setattr(cpu_times, "total", lambda: next(clock))
    times = CpuTimes()
    for nodeid in ("tests/a/test_x.py::test_1", "tests/a/test_x.py::test_2", "tests/b/test_y.py::test_1"):
        times.pytest_runtest_logstart(nodeid)
    times.turn_to("")
    assert times.files == {COLLECTION: 1.0, "tests/a/test_x.py": 3.0, "tests/b/test_y.py": 0.5}


def test_folders_add_their_files_up() -> None:
    lines = [*table({"tests/a/test_x.py": 1.0, "tests/a/test_y.py": 2.0, "tests/b/test_z.py": 2.5})]
    assert [line.split() for line in lines[1:3]] == [["3.0", "tests/a"], ["2.5", "tests/b"]]
