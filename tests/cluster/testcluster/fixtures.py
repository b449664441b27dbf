"""The pytest plugin: `control_plane`, `node` and `namespace`, and the build they need.

Loaded for every test run by pyproject.toml. It imports little and does nothing until a collected test asks
for a cluster. The build happens before the first test, outside of any test's time limit, in view of the user.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from testcluster.build import ensure
from testcluster.cluster import Cluster
from testcluster.control_plane import ControlPlane, running_control_plane
from testcluster.errors import ClusterError
from testcluster.node import Node, running_node

CLUSTERS = frozenset({"control_plane", "node"})
"""The fixtures that need the binaries."""

_failure = pytest.StashKey[ClusterError]()
_plane = pytest.StashKey[ControlPlane]()
_end_of_plane = pytest.StashKey[ExitStack]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build the programs that the collected tests need; a failed build fails those tests and no others."""
    is_needed = any(_asks_for(item, name) for item in session.items for name in CLUSTERS)
    if session.config.option.collectonly or not is_needed:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            ensure()
        except ClusterError as error:
            session.config.stash[_failure] = error


def _asks_for(item: pytest.Item, name: str) -> bool:
    """Return whether the test uses this module's fixture: another fixture may be called a node, too."""
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.get(name) if fixtures is not None else None
    return definitions is not None and definitions[-1].func.__module__ == __name__


def _binaries(config: pytest.Config) -> Path:
    if failure := config.stash.get(_failure, None):
        raise failure
    return ensure()


def shared_control_plane(config: pytest.Config) -> ControlPlane:
    """Return the control plane of this process; start one if none runs."""
    if _plane not in config.stash:
        config.stash[_end_of_plane] = ExitStack()
        plane = config.stash[_end_of_plane].enter_context(running_control_plane(_binaries(config)))
        config.stash[_plane] = plane
    return config.stash[_plane]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the control plane with the last test of a folder: an idle one still takes processor time."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _end(item.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the clusters, also when the session was interrupted."""
    _end(session.config)


def _end(config: pytest.Config) -> None:
    if _end_of_plane in config.stash:
        ending = config.stash[_end_of_plane]
        del config.stash[_end_of_plane]
        if _plane in config.stash:
            del config.stash[_plane]
        ending.close()


@pytest.fixture(scope="module")
def control_plane(pytestconfig: pytest.Config) -> ControlPlane:
    """Return a real API server with its controllers, without nodes, for a folder: use `namespace`."""
    return shared_control_plane(pytestconfig)


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """Yield a real cluster of one node that runs pods, with Services and DNS; others may join. Needs root."""
    with running_node(_binaries(pytestconfig)) as running:
        yield running


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a new namespace in the test's cluster; on a node it is deleted afterwards.

    Without a node nothing runs in it, and the cluster itself ends soon. Deleting takes the API server and the
    controllers more processor time than most tests: each kind of object is listed and deleted by itself.
    """
    has_node = _asks_for(request.node, "node")
    cluster: Cluster = request.getfixturevalue("node" if has_node else "control_plane")
    name = cluster.create_namespace()
    yield name
    if has_node:
        cluster.delete_namespace(name)
