"""Gates of the cache for the engine on Triton's kernels, which Triton's interpreter runs."""

from pathlib import Path

import pytest

from interpreted_run import SECONDS, pass_interpreted

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]

HERE = Path(__file__).parent


@pytest.mark.timeout(SECONDS)
def test_the_engine_on_interpreted_kernels_passes_the_gates() -> None:
    """In one process: its imports take as long as a gate."""
    pass_interpreted(HERE / "interpreted", HERE / "silent", MAMBASERVE_KERNELS="triton")
