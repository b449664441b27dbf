"""Kernels are compiled here for GPUs that are not here; `interpreted/` belongs to another process."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreted_language

    interpreted_language.install()
    collect_ignore = []
else:
    collect_ignore = ["interpreted"]


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter of Triton 3.6 makes bounds of loops from arrays of one number.
    config.addinivalue_line("filterwarnings", "ignore:Conversion of an array with ndim:DeprecationWarning")
