"""The pytest plugin: `control_plane`, `node` and `namespace`, and the build they need.

Loaded for every test run by pyproject.toml. It imports little and does nothing until a collected test asks
for a cluster. The build happens before the first test, outside of any test's time limit, in view of the user.
"""

from collections.abc import Iterator
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Builds what the collected tests need; a failed build fails those tests and no others."""
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or not asked & CLUSTERS:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            ensure()
        except ClusterError as error:
            session.config.stash[_failure] = error


def _binaries(config: pytest.Config) -> Path:
    if failure := config.stash.get(_failure, None):
        raise failure
    return ensure()


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A real API server with its controllers, without nodes; shared by the session, so use `namespace`."""
    with running_control_plane(_binaries(pytestconfig)) as plane:
        yield plane


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """A real one-node cluster that runs pods, with Services and DNS; shared by the session. Needs root."""
    with running_node(_binaries(pytestconfig)) as running:
        yield running


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh namespace in the cluster that the test uses; deleted afterwards."""
    fixture = "node" if "node" in request.fixturenames else "control_plane"
    cluster: Cluster = request.getfixturevalue(fixture)
    name = cluster.create_namespace()
    yield name
    cluster.delete_namespace(name)
