"""Every Triton kernel equals its float64 reference, run by Triton's interpreter.

A process of its own: `TRITON_INTERPRET` counts when a kernel is decorated, and no other test may see it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]

HERE = Path(__file__).parent


@pytest.mark.timeout(3600)  # beside other tests it gets what they leave
def test_the_interpreted_kernels_equal_their_references() -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, HERE / "interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[3],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
