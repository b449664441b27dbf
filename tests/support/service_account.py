"""A ServiceAccount of a test cluster, used from outside of it."""

from pathlib import Path

import yaml

from testcluster.control_plane import ControlPlane


def as_account(plane: ControlPlane, namespace: str, account: str, path: Path) -> Path:
    """Write the kubeconfig of a ServiceAccount."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", account, "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path
