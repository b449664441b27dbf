"""Distribution of tests among the processes of `make test`: by file, but tests/kube in two parts.

A pytest plugin. Each process that runs a test of tests/kube starts a control plane of its own, which takes
longer than most of the tests; in one process alone their waiting would last longer than all other tests.
"""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = ("tests/kube/test_operator", "tests/kube/")
"""Each part is about half of the time. Files that use the same addresses of pods are all in the second."""


def share_of(test: str) -> str:
    """Name the share of a test: the tests of one share run in one process, one after the other."""
    file = test.partition("::")[0]
    return next((part for part in TOGETHER if file.startswith(part)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Shares(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Shares(config, log) if config.getvalue("dist") == "loadfile" else None
