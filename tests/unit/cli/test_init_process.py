"""The first process of a container ends when it is told to, however early that is."""

import signal
import subprocess
import sys

import pytest

CODE = """
import sys, time
from mamba_cli import main

main.os.getpid = lambda: {pid}
# What takes seconds in a container that has just started. Many short sleeps, because a signal that arrives
# between two instructions before one sleep is looked at behind it.
main._collect = lambda _: (print("started", flush=True), [time.sleep(0.05) for _ in range(1200)])
main.run()
"""


@pytest.mark.parametrize(
    ("pid", "code"), [(1, 128 + signal.SIGTERM), (4711, -signal.SIGTERM)], ids=["first", "any other"]
)
def test_a_command_that_is_still_starting_ends_by_sigterm(pid: int, code: int) -> None:
    argv = [sys.executable, "-c", CODE.format(pid=pid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"

        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == code
