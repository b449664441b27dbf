"""A ServiceAccount of a test cluster, used from outside of it."""

from pathlib import Path

import yaml

from parsed_yaml import load_yaml
from testcluster.control_plane import ControlPlane


def as_account(plane: ControlPlane, namespace: str, account: str, path: Path) -> Path:
    """Write the kubeconfig of a ServiceAccount."""
    config = load_yaml(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", account, "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path
