"""The decode kernels of recurrent mixers, compiled so that they count the bytes of states that they move."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mamba_kernels.cpu.build import SOURCES, UNIT_FLAGS, find_compiler

UNIT = Path(__file__).parent / "counted_states.cpp"


class CountedKernels:
    """In place of a `Library`: decode kernels with AVX2, one thread, for float32 states in whole vectors."""

    delta_prefill = None
    """Prompts are not counted."""

    def __init__(self, folder: Path) -> None:
        """Compile the kernels into `folder`. Raises CannotBuild without a compiler."""
        compiler, target = find_compiler(os.environ), folder / "counted.so"
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-I{SOURCES}"]
        units = [str(UNIT), str(SOURCES / "worker_pool.cpp")]
        subprocess.run(
            [compiler, *flags, *UNIT_FLAGS["kernels_avx2.cpp"], *units, "-o", str(target)], check=True
        )
        self._library = ctypes.CDLL(str(target))
        for name in ("bytes_read", "bytes_written"):
            getattr(self._library, name).restype = ctypes.c_int64

    def mamba_decode(self, call: int) -> None:
        self._library.counted_mamba_decode(ctypes.c_void_p(call))

    def delta_decode(self, call: int) -> None:
        self._library.counted_delta_decode(ctypes.c_void_p(call))

    def traffic(self, memory: torch.Tensor, run: Callable[[], Any]) -> tuple[int, int]:
        """Return the bytes of `memory`, which is dense, that `run` reads and writes."""
        self._library.count_in(ctypes.c_void_p(memory.data_ptr()), ctypes.c_int64(memory.nbytes))
        run()
        return self._library.bytes_read(), self._library.bytes_written()
