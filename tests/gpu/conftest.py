"""Where these tests run: on the card, or with MAMBASERVE_TEST_DEVICE=cpu in Triton's interpreter.

`python3 -m pytest -c tests/gpu/pytest.ini tests/gpu` needs what `docs/howto/measure-a-gpu.md` lists. Kernels
are interpreted if TRITON_INTERPRET=1 stood in the environment before Triton was imported.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu.model_directory import write_config
from benchmarks.gpu.random_weights import RandomWeights

from mamba_server.engine.boot import BootOverrides, Engine, boot
from mamba_settings.engine_settings import EngineSettings

Booted = Callable[..., Engine]

if os.environ.get("MAMBASERVE_TEST_DEVICE") == "cpu":
    import interpreted_language

    interpreted_language.install()
    # Programs that find nothing to do take the interpreter as long as others.
    from mamba_kernels.paged_attention import triton as paged_attention

    paged_attention.PROGRAMS = 4


@pytest.fixture(scope="session")
def device() -> torch.device:
    if os.environ.get("MAMBASERVE_TEST_DEVICE") == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here; MAMBASERVE_TEST_DEVICE=cpu runs the interpreter")
    return torch.device("cuda")


@pytest.fixture
def booted(device: torch.device, tmp_path: Path) -> Booted:
    """Boot an engine with random weights: few layers of real extents on a card, narrow ones without."""

    def boot_one(name: str, *, weights: Any = None, graphs: Any = None, **settings: Any) -> Engine:
        size = "few" if device.type == "cuda" else "small"
        directory = write_config(tmp_path / name, name, size)
        defaults = {"max_model_len": 512, "max_running_requests": 6, "page_size": 16, "track_interval": 64}
        if device.type == "cpu":
            defaults["arena_bytes"] = 8 << 20
        wanted = EngineSettings(
            model=str(directory),
            device=device.type,
            overlap=True,
            dtype="float32",
            state_dtype="float32",
            **{**defaults, **settings},
        )
        return boot(wanted, lambda *_: None, BootOverrides(graphs=graphs, weights=weights or RandomWeights()))

    return boot_one
