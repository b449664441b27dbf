"""The engine on Triton's kernels passes gates of the cache: in a process of its own, whose kernels are run by
Triton's interpreter (`TRITON_INTERPRET` counts when a kernel is decorated)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", ["interpreted", "silent"])
def test_the_engine_on_interpreted_kernels_passes_the_gates(folder: str) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, HERE / folder],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "MAMBASERVE_KERNELS": "triton",
            "OMP_NUM_THREADS": "1",
        },
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
