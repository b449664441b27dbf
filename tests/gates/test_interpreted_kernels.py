"""Gates of the cache for the engine on Triton's kernels.

The tests run in a process whose kernels are run by Triton's interpreter (`TRITON_INTERPRET` counts when a
kernel is decorated).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]

HERE = Path(__file__).parent


STARTS = HERE / "interpreted" / "test_ways_on.py"


@pytest.mark.timeout(3600)  # beside other tests it gets what they leave
@pytest.mark.parametrize(
    "what",
    [[f"--ignore={STARTS}", HERE / "interpreted"], [STARTS], [HERE / "silent"]],
    ids=["all", "starts", "silent"],
)
def test_the_engine_on_interpreted_kernels_passes_the_gates(what: list[str | Path]) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *what],
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
