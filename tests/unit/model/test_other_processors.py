"""Models give the same results on processors with fewer instructions.

Each set is forced in a process of its own, since a process chooses once.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mamba_kernels.cpu.library import open_library
from mamba_kernels.kernel_choice import VARIABLE, UnknownKernels

ROOT = Path(__file__).parents[3]
PARITY = Path(__file__).with_name("test_parity.py")


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_every_family_says_what_transformers_says(instructions: str) -> None:
    try:
        library = open_library({**os.environ, VARIABLE: instructions})
    except UnknownKernels as why:
        pytest.skip(str(why))
    if library is None:
        pytest.skip("there is no compiler here")
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "one_pass_over_the_text and 100"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, PARITY],
        env={**os.environ, VARIABLE: instructions},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert " passed" in ran.stdout
