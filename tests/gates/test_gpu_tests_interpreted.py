"""The tests of `tests/gpu` pass without a card: in a process of their own, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "gpu"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_tests_for_a_card_pass_in_the_interpreter() -> None:
    options = ["-q", "-x", "-c", GPU / "pytest.ini", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, GPU],
        env={
            **os.environ,
            "MAMBASERVE_TEST_DEVICE": "cpu",
            "TRITON_INTERPRET": "1",
            "MAMBASERVE_KERNELS": "triton",
            "OMP_NUM_THREADS": "1",
        },
        cwd=GPU.parents[1],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-4000:]
