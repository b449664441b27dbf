"""Fixtures of the tests against a real API server."""

import pytest

from mamba_api.v1alpha1.schema import crd_yaml
from testcluster.control_plane import ControlPlane


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """Return the control plane with the CRD in force."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd_yaml())
    control_plane.wait_established("mambadeployments.serving.mambaserve.io")
    return control_plane
