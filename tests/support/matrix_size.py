"""The size of the matrices that a run of the tests tries: a few cases of each outcome, or all."""

import os

LARGE = os.environ.get("MAMBASERVE_GATES") == "large"
"""Whether all cases are tried, as `make gates` does."""
