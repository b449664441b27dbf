"""The pytest plugin: `control_plane` and `namespace`, and the builds they need.

Loaded for every test run by pyproject.toml. It imports little and does nothing until a collected test asks
for a cluster. Builds happen before the first test, outside of any test's time limit, in view of the user.
"""

from collections.abc import Iterator

import pytest

from testcluster.build import TOOLS, ensure
from testcluster.cluster import Cluster
from testcluster.control_plane import ControlPlane, running_control_plane
from testcluster.errors import ClusterError
from testcluster.node import Binaries, Node, running_node

NEEDS = {"control_plane": ("hyperkube",), "node": tuple(TOOLS), "helm": ("helm",)}
"""Tools per fixture."""

_failures = pytest.StashKey[dict[str, ClusterError]]()


def tools_needed(fixtures: set[str]) -> list[str]:
    """The tools that the clusters behind these fixtures consist of, in the order they are declared."""
    wanted = {tool for fixture, tools in NEEDS.items() if fixture in fixtures for tool in tools}
    return [name for name in TOOLS if name in wanted]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Builds what the collected tests need; a failed build fails those tests and no others."""
    failures = session.config.stash.setdefault(_failures, {})
    if session.config.option.collectonly:
        return
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    for name in tools_needed(asked):
        with capture.global_and_fixture_disabled():
            try:
                ensure(TOOLS[name])
            except ClusterError as error:
                failures[name] = error


def _built(config: pytest.Config, fixture: str) -> None:
    failures = config.stash.get(_failures, {})
    for name in NEEDS[fixture]:
        if name in failures:
            raise failures[name]


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A real API server with its controllers, without nodes; shared by the session, so use `namespace`."""
    _built(pytestconfig, "control_plane")
    with running_control_plane(ensure(TOOLS["hyperkube"])) as plane:
        yield plane


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """A real one-node cluster that runs pods, with Services and DNS; shared by the session. Needs root."""
    _built(pytestconfig, "node")
    with running_node(Binaries(**{name: ensure(tool) for name, tool in TOOLS.items()})) as running:
        yield running


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fresh namespace in the cluster that the test uses; deleted afterwards."""
    fixture = "node" if "node" in request.fixturenames else "control_plane"
    cluster: Cluster = request.getfixturevalue(fixture)
    name = cluster.create_namespace()
    yield name
    cluster.delete_namespace(name)
