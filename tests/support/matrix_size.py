"""The size of the matrices that a run of the tests tries: a few cases of each outcome, or all."""

import os

import pytest

LARGE = os.environ.get("MAMBASERVE_GATES") == "large"
"""Whether all cases are tried, as `make gates` does."""


def only_in_gates(why: str) -> pytest.MarkDecorator:
    """Mark a test that `make gates` runs and an ordinary run skips; `why` says which test has its outcome."""
    return pytest.mark.skipif(not LARGE, reason=f"{why}: make gates")
