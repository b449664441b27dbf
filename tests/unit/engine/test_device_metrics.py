"""Counters of a GPU's work: synchronisations counted by torch, compilations by Triton."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from mamba_kernels.dispatch.backend import TORCH
from mamba_server.engine.device_metrics import SYNC_WARNING, HostSyncs, device_counters

COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from mamba_kernels.dispatch.backend import Backend, REFERENCE
from mamba_server.engine.device_metrics import device_counters

class NoGpu:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

driver.set_active(NoGpu())
from mamba_kernels.rms_norm.triton import call

def compile(width):
    x, weight = torch.empty(4, width, device="meta"), torch.empty(width, device="meta")
    made = call(x, weight, 1e-5, None, torch.empty(4, width, device="meta"))
    made.kernel.warmup(grid=made.grid, **made.arguments, **made.constants, **made.options)

compile(256)
counters = device_counters(torch.device("cpu"), Backend("triton", REFERENCE))
counts = []
for width in (256, 512, 512):
    compile(width)
    counts.append(counters()["jit_compilations_after_ready_total"])
print(counts)
"""


@pytest.mark.slow
def test_a_kernel_that_triton_compiles_while_serving_is_counted_and_named(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "[0, 1, 1]", ran.stderr[-2000:]
    assert "rms_norm" in ran.stderr


def test_synchronisations_are_counted_by_what_torch_says(caplog: pytest.LogCaptureFixture) -> None:
    library = Path(torch.__file__).parent / "lib/libc10_cuda.so"
    if library.exists():
        assert SYNC_WARNING.encode() in library.read_bytes()
    others: list[str] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: others.append(str(message))
        syncs = HostSyncs()
        warnings.filterwarnings("always", message="something else")
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                warnings.warn(SYNC_WARNING, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert syncs.count == 3
    assert len(caplog.records) == 1
    assert others == ["something else"]


PROTOTYPE = "Synchronization debug mode is a prototype feature"
"""Beginning of torch's warning about the mode."""


def test_that_torch_calls_the_mode_a_prototype_ends_no_test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Path(torch.__file__).parent / "lib/libtorch_python.so"
    if library.exists():
        assert PROTOTYPE.encode() in library.read_bytes()
    asked: list[str] = []

    def set_mode(mode: str) -> None:
        asked.append(mode)
        warnings.warn(f"{PROTOTYPE} and does not yet detect all", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings():
        HostSyncs()
    assert asked == ["warn"]


def test_nothing_is_counted_where_neither_is() -> None:
    assert device_counters(torch.device("cpu"), TORCH)() == {}
