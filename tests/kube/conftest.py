"""Fixtures of the tests against a real API server."""

from weakref import WeakKeyDictionary

import pytest

from mamba_api.v1alpha1.schema import CUSTOM_KINDS, all_crds_yaml
from testcluster.control_plane import ControlPlane

CRD = "mambadeployments.serving.mambaserve.io"
_applied: WeakKeyDictionary[ControlPlane, tuple[str, int] | None] = WeakKeyDictionary()
"""Version of the CRD that was applied last to each control plane."""


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """Return the control plane with the CRD in force, which is applied anew where a test has changed it."""
    version = _version(control_plane)
    if version is None or version != _applied.get(control_plane):
        control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=all_crds_yaml())
        for kind in CUSTOM_KINDS:
            control_plane.wait_established(kind.name)
        _applied[control_plane] = _version(control_plane)
    return control_plane


def _version(plane: ControlPlane) -> tuple[str, int] | None:
    """Return what tells one CRD, and one content of it, from another; None where it is gone or goes."""
    meta = (plane.get("customresourcedefinitions", CRD) or {}).get("metadata") or {}
    return (meta["uid"], meta["generation"]) if meta and "deletionTimestamp" not in meta else None
