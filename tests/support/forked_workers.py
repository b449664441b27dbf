"""Workers of a parallel test run that are forked from one process, which has imported all tests.

A pytest plugin: with `--fork-workers`, pytest-xdist starts `worker_nursery.py` instead of Python.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

NURSERY = Path(__file__).with_name("worker_nursery.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fork-workers", action="store_true", help="import the tests once for all of -n")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start the nursery, and have it fork every worker."""
    if not config.getoption("--fork-workers") or sys.platform != "linux":
        return
    folder = tempfile.mkdtemp(prefix="mambaserve-workers-")
    address = f"{folder}/nursery"
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener, theirs:
        listener.bind(address)
        listener.listen(len(specs))
        files = (theirs.fileno(), listener.fileno())
        code = f"import sys; sys.path.insert(0, {str(NURSERY.parent)!r}); import worker_nursery"
        nursery = subprocess.Popen(
            [sys.executable, "-c", f"{code}; worker_nursery.serve(*{files})"],
            pass_fds=files, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    assert nursery.stdin is not None
    with nursery.stdin as stdin:
        args = [*map(str, config.invocation_params.args)]
        json.dump({"path": sys.path, "args": args, "folder": folder}, stdin)
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-I", "-S", str(NURSERY), address])

    def end() -> None:
        ours.close()
        nursery.wait()
        shutil.rmtree(folder)

    config.add_cleanup(end)
