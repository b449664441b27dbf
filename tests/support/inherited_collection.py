"""The collection of the nursery, which the workers that are forked from it run instead of collecting again.

A collection is the tests of a session with their parents, their fixtures and the reports of modules that
could not be collected or were skipped. In a worker, `hand_over` puts the session that owns them in the place
of the new one, and gives it the worker's configuration: pytest-xdist starts the session as ever, and only the
step that collects is done already. Options that choose tests by the results of earlier runs, such as `--lf`,
are unknown to the nursery, which ends then, so that workers collect for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class Collection:
    """Remembers what one session has collected; a plugin of that session's pytest."""

    def __init__(self) -> None:
        self._session: Any = None
        self._fixtures: Any = None
        self._reports: list[pytest.CollectReport] = []
        """Reports of what was not collected, which every worker sends to the controller."""
        self._folders: list[Path] = []
        """Folders whose `conftest.py`, or that of a parent, has hooks or fixtures of their tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._reports.append(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._session = session
        self._fixtures = session._fixturemanager
        self._folders = list(session.config.pluginmanager._dirpath2confmods)

    def hand_over(self) -> None:
        """Have the next session of this process, a worker's, begin with what was collected."""
        create = vars(pytest.Session)["from_config"]

        def begin(config: pytest.Config) -> pytest.Session:
            pytest.Session.from_config = create  # type: ignore[method-assign]
            return self._session_with(config)

        pytest.Session.from_config = begin  # type: ignore[method-assign,assignment]

    def _session_with(self, config: pytest.Config) -> pytest.Session:
        """Return the session that has collected, with the configuration of a worker."""
        session = self._session
        session.config = config
        for item in session.items:
            node = item
            while node.config is not config:
                node.config = config
                node = node.parent
        session.testsfailed = session.testscollected = 0
        session._shouldstop = session._shouldfail = False
        session.perform_collect = self._end_collection
        config.pluginmanager.register(session, name="session")
        return session

    def _end_collection(self) -> Sequence[pytest.Item]:
        """Do what is left of collecting: load hooks of folders, send the reports, and announce the end."""
        session = self._session
        config = session.config
        # The session's start has made others, without the fixtures of modules and folders.
        session._fixturemanager = self._fixtures
        self._fixtures.config = config
        for folder in self._folders:
            config.pluginmanager._loadconftestmodules(
                folder,
                config.getoption("importmode"),
                rootpath=config.rootpath,
                consider_namespace_packages=config.getini("consider_namespace_packages"),
            )
        for report in self._reports:
            config.hook.pytest_collectreport(report=report)
        session.testscollected = len(session.items)
        config.hook.pytest_collection_finish(session=session)
        return session.items
