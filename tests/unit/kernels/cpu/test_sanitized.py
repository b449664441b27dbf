"""The kernels under the address and undefined behaviour sanitizers, on sizes that end inside a vector."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mamba_kernels.cpu.build import CannotBuild, ensure_built, find_compiler
from mamba_kernels.cpu.library import Library
from mamba_kernels.kernel_choice import INSTRUCTION_SETS
from matrix_size import LARGE

CALLS = Path(__file__).with_name("sanitized_calls.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the first builds the library with sanitizers, minutes on a busy machine
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_no_kernel_reads_or_writes_beside_its_arrays(name: str) -> None:
    if name == "avx512" and not LARGE and "avx512_bf16" in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("registers of avx512_bf16, scratch of avx2: MAMBASERVE_GATES=large")
    try:
        Library(ensure_built(), name)  # the CPU has these instructions
        compiler, library = find_compiler(os.environ), ensure_built(sanitize=True)
    except CannotBuild as why:
        pytest.skip(str(why))
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, str(CALLS), str(library), name],
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [
        "linear",
        "decode",
        "prefill",
        "delta_update",
        "delta_prefill",
        "delta_mixer_decode",
        "delta_mixer_prefill",
        "short_conv_decode",
        "short_conv_prefill",
        "norm",
        "gate",
        "change",
        "choose",
        "turn",
        "attend",
        "extend",
        "mixture",
        "step",
        "largest",
        "passing",
        "caught",
    ]
    assert done.stdout.split() == expected
