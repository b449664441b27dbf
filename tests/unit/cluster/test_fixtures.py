"""The pytest plugin builds before the tests, and a failed build fails those tests only that need it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testcluster import fixtures

TESTS = """\
import pytest
@pytest.mark.parametrize("node", ["of a tree"])
def test_plain(node): pass
def test_cluster(control_plane): pass
"""
BROKEN_GO = """\
#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.30.0 linux/amd64"; exit 0; fi
echo run >> "$CALLS"; echo "no space left on device"; exit 1
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which every build fails."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "go").write_text(BROKEN_GO)
    (tmp_path / "path" / "go").chmod(0o755)
    return {
        **os.environ,
        "CALLS": str(tmp_path / "calls"),
        "PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}",
        # The other plugins take seconds to import and have no part in this.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(Path(fixtures.__file__).parents[1]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def run(folder: Path, environ: dict[str, str], *arguments: str) -> str:
    argv = [sys.executable, "-m", "pytest", "-p", "testcluster.fixtures", "-c", os.devnull, *arguments]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True).stdout


def test_a_failed_build_fails_only_the_tests_that_need_it(tmp_path: Path, environ: dict[str, str]) -> None:
    output = run(tmp_path, environ, "test_it.py")

    assert "1 passed, 1 error" in output
    assert "no space left on device" in output
    assert (tmp_path / "calls").read_text() == "run\n"


@pytest.mark.parametrize("arguments", [("-k", "test_plain"), ("--collect-only",)])
def test_nothing_is_built_when_no_test_needs_it(
    tmp_path: Path, environ: dict[str, str], arguments: tuple[str, ...]
) -> None:
    output = run(tmp_path, environ, "test_it.py", *arguments)

    assert "error" not in output
    assert not (tmp_path / "calls").exists()


def test_a_control_plane_serves_the_tests_of_its_folder_and_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    @contextmanager
    def running(_: Path) -> Iterator[object]:
        said.append("started")
        yield object()
        said.append("ended")

    monkeypatch.setattr(fixtures, "running_control_plane", running)
    monkeypatch.setattr(fixtures, "ensure", Path)
    config: Any = SimpleNamespace(stash=pytest.Stash())
    files = ("kube/test_a.py", "kube/test_b.py", "unit/test_c.py", "unit/test_d.py")
    first, second, *_ = items = [SimpleNamespace(path=Path(at), config=config) for at in files]
    plane = fixtures.shared_control_plane(config)
    for item, following in zip(items, [*items[1:], None], strict=True):
        assert said == ["started"] if item in (first, second) else said == ["started", "ended"]
        if item is second:
            assert fixtures.shared_control_plane(config) is plane
        fixtures.pytest_runtest_teardown(item, following)  # type: ignore[arg-type]
    assert fixtures.shared_control_plane(config) is not plane
    assert said == ["started", "ended", "started"]
    fixtures.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert said[-1] == "ended"
