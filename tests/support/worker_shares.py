"""How `make test` shares the tests among its processes: by file, and all of tests/kube to one of them.

A pytest plugin. Each process that runs a test of tests/kube starts a control plane of its own, which takes
longer than most of the tests.
"""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = ("tests/kube/",)


def share_of(file: str) -> str:
    """Files of one share run in one process, one after the other."""
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Shares(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(super()._split_scope(nodeid))

    return Shares(config, log) if config.getvalue("dist") == "loadfile" else None
