"""Every Triton kernel equals its float64 reference, run by Triton's interpreter."""

from pathlib import Path

import pytest

from interpreted_run import SECONDS, pass_interpreted

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]

HERE = Path(__file__).parent


@pytest.mark.timeout(SECONDS)
def test_the_interpreted_kernels_equal_their_references() -> None:
    pass_interpreted(HERE / "interpreted")
