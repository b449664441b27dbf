"""Workers that share one collection report what workers report that collect by themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNTED = """
import os
from pathlib import Path

with open(Path(__file__).with_name("imports"), "a") as imports:
    imports.write("once\\n")

def pytest_generate_tests(metafunc):
    with open(Path(__file__).with_name("collections"), "a") as collections:
        collections.write("once\\n")

def test_in_a_worker(request, tmp_path, prepared):
    assert request.config.workerinput["workerid"] == os.environ["PYTEST_XDIST_WORKER"]
    assert f"popen-{os.environ['PYTEST_XDIST_WORKER']}" in str(tmp_path)
    assert prepared == [request.node.nodeid]
"""
CONFTEST = """
import pytest

prepared_tests = []

def pytest_runtest_setup(item):
    prepared_tests[:] = [item.nodeid]

@pytest.fixture
def prepared():
    return prepared_tests
"""
SKIPPED = "import pytest\n\npytest.importorskip('no_such_module')\n\ndef test_never(): ...\n"
CRASHES = "import os, signal\n\ndef test_a_crash():\n    os.kill(os.getpid(), signal.SIGKILL)\n"


def run(folder: Path, **modules: str) -> subprocess.CompletedProcess[str]:
    """Run these modules as tests in two workers that are forked, beside a `conftest.py` with a hook."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text)
    options = ["-n2", "--fork-workers", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(folder)],
        cwd=ROOT, env=ours, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_modules_are_collected_once_and_skips_and_crashes_are_reported(tmp_path: Path) -> None:
    ran = run(tmp_path, first=COUNTED, second=COUNTED, skipped=SKIPPED, crashes=CRASHES)
    assert (tmp_path / "imports").read_text().split() == ["once"] * 2
    assert (tmp_path / "collections").read_text().split() == ["once"] * 2
    assert re.search(r"\b1 failed, 2 passed, 1 skipped", ran.stdout), ran.stdout + ran.stderr
    assert "crashed while running" in ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_a_module_that_raises_is_an_error_of_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, first=COUNTED, broken="def test_early(): ...\n\nraise ValueError('broken')\n")
    assert "ValueError: broken" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode != pytest.ExitCode.OK
