"""Benchmarks of a model say what is wrong with the one that they were told, before they start anything."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "benchmark", ["cpu_defaults", "engine_cpu", "engine_cpu_http", "serve", "stream_gaps"]
)
def test_a_directory_without_a_checkpoint_is_an_error_that_names_it(benchmark: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--model", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
