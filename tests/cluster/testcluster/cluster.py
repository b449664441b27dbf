"""What tests do with a cluster, whether it has a node or not: commands, manifests, namespaces, waiting."""

import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from testcluster.api import ApiClient
from testcluster.errors import ClusterError, CommandFailed
from testcluster.kubectl import Kubectl, Manifest

T = TypeVar("T")


class Cluster:
    """A running cluster as its administrator sees it."""

    def __init__(self, kubeconfig: Path, kubectl: Kubectl, api: ApiClient) -> None:
        self.kubeconfig = kubeconfig
        """File that clients are given; it stands alone."""
        self.kubectl = kubectl
        self.api = api

    def apply(self, manifest: Manifest, namespace: str | None = None) -> None:
        """`kubectl apply` of YAML text, an object, or a list of objects."""
        self.kubectl.apply(manifest, namespace)

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object, or None when there is none of that name."""
        where = ["-n", namespace] if namespace else []
        try:
            found: dict[str, Any] = self.kubectl.json("get", kind, name, *where)
        except CommandFailed as error:
            if "(NotFound)" in error.stderr:
                return None
            raise
        return found

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind, in one namespace or in all."""
        where = ["-n", namespace] if namespace else ["--all-namespaces"]
        chosen = ["-l", selector] if selector else []
        items: list[dict[str, Any]] = self.kubectl.json("get", kind, *where, *chosen)["items"]
        return items

    def create_namespace(self, prefix: str = "test", *, timeout: float = 90.0) -> str:
        """A fresh namespace in which pods can be made: its default service account is there."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        status, answer = self.api.request("POST", "/api/v1/namespaces", body)
        if status != HTTPStatus.CREATED:
            raise ClusterError(f"namespace {name} could not be made: {status} {answer}")
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait_for(lambda: self.api.answers(account), f"namespace {name} to be usable", timeout=timeout)
        return name

    def delete_namespace(self, name: str) -> None:
        """Asks for the deletion and does not wait: whatever is in it goes in the background."""
        try:
            self.api.request("DELETE", f"/api/v1/namespaces/{name}")
        except OSError as error:
            raise ClusterError(f"namespace {name} could not be deleted: {error}") from error

    def wait_for(self, look: Callable[[], T], what: str, *, timeout: float = 30.0) -> T:
        """The first true value of `look`. Raises ClusterError naming `what` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if found := look():
                return found
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout:g} s for {what}; last seen: {found!r}")
            time.sleep(0.1)
