"""The benchmark of a request's CPU time: what it tells of its numbers, and that it leaves nothing running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def benchmarks_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_rates_ratios_and_added_time_follow_from_what_was_measured() -> None:
    from benchmarks.http_cpu import ProcessCost, table
    from benchmarks.http_cpu_client import kinds
    from benchmarks.http_cpu_processes import ProcessUnderTest

    asked = kinds([8, 64])
    few, many, stream = (kind.name for kind in asked)
    peer = ProcessCost(
        "peer",
        ProcessUnderTest(1, 2, 3),
        {few: [100.0, 120.0, 140.0], many: [50.0], stream: [900.0]},
        {},
        [0.2, 0.4],
    )
    ours = ProcessCost(
        "ours", ProcessUnderTest(4, 5, 6), {few: [200.0, 250.0, 300.0], many: [150.0], stream: [450.0]}
    )
    lines = table([peer, ours], asked)
    assert f"| {few} | ours | 200 | 250 | 4000 |" in lines
    assert f"| {stream} | ours | 450 | 450 |  |" in lines
    assert any(few in line and "2.00" in line and "2.08" in line for line in lines)
    assert any(many in line and "3.00" in line for line in lines)
    assert "| peer | 0.20 | 0.30 |" in lines
    assert not any(line.startswith("| ours | 0") for line in lines)
    assert [(kind.connections, kind.requests) for kind in asked[:2]] == [(8, 400), (64, 640)]


WITH_A_CHILD = """
import sys, time
from pathlib import Path
from benchmarks.http_cpu_processes import end_children_on_sigterm, started
end_children_on_sigterm()
child = "import time; print('child ready at http://x:1', flush=True); time.sleep(600)"
with started([sys.executable, "-c", child], "child ready", Path()) as (pid, _):
    print(pid, flush=True)
    time.sleep(600)
"""


def test_its_children_end_with_it() -> None:
    benchmark = subprocess.Popen(
        [sys.executable, "-c", WITH_A_CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert benchmark.stdout is not None
    child = int(benchmark.stdout.readline())
    os.kill(child, 0)
    benchmark.send_signal(signal.SIGTERM)
    assert benchmark.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    benchmark.stdout.close()
