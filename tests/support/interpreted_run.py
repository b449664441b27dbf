"""Runs of pytest in a process of their own whose kernels are run by Triton's interpreter.

`TRITON_INTERPRET` counts when a kernel is decorated, and no other test may see it. Used by the tests marked
`interpreted`; what such a run prints of a failure is the message of theirs.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 3600
"""Limit of a whole run and of each test in it. Beside other tests these get what those leave: a test that
computes for ten seconds has taken more than the five minutes which other tests may take."""
LINES = 200
"""Last lines of each stream in the message."""
OF_THE_BINDINGS = ("nanobind: ", " - leaked ", " - ... skipped remainder", "See https://nanobind.")
"""How the lines begin that Triton's bindings write at the end of each process, hundreds of them."""


def pass_interpreted(*paths: Path, **environment: str) -> None:
    """Run the tests below these paths; AssertionError with their failures and the summary.

    Args:
        paths: files and folders.
        environment: variables beside those of this process.
    """
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--timeout={SECONDS}",
        "--durations=10",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    # The summary of pytest comes last, as in any run.
    assert ran.returncode == 0, f"exit code {ran.returncode}\n{_end(ran.stderr)}\n{_end(ran.stdout)}"


def _end(text: str) -> str:
    """Return the last lines that tell of the tests."""
    return "\n".join([line for line in text.splitlines() if not line.startswith(OF_THE_BINDINGS)][-LINES:])
