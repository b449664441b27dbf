"""A run on Triton's interpreter that fails says which of its tests failed and why."""

from pathlib import Path

import pytest

from interpreted_run import pass_interpreted

FAILING = """
import atexit, os, sys

# As Triton's bindings do, after the summary of pytest.
atexit.register(lambda: sys.stderr.write(' - leaked function "empty"\\\\n' * 1000))


def test_what_passes():
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_what_fails():
    number = 7
    assert number == 8
"""


def test_a_failure_shows_the_failed_test_and_ends_with_the_summary(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    with pytest.raises(AssertionError) as failure:
        pass_interpreted(tmp_path)
    lines = str(failure.value).splitlines()
    assert "E       assert 7 == 8" in lines
    assert lines[-1].startswith("1 failed, 1 passed")
    assert not [line for line in lines if "leaked" in line]
