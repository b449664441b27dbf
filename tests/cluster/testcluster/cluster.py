"""Operations on a test cluster, with or without a node: commands, manifests, namespaces, waiting."""

import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from testcluster.api import ApiClient
from testcluster.errors import ClusterError, Refused
from testcluster.kubectl import Kubectl, Manifest, objects_of
from testcluster.resources import Resources

T = TypeVar("T")
APPLY = "application/apply-patch+yaml"
APPLYING = "fieldManager=test&force=true&fieldValidation=Strict"
"""Query of a server-side apply as kubectl sends it: a field that the schema does not know is an error."""
APPLY_SECONDS = 60.0
SERVICE_ACCOUNT = "system:serviceaccount:"


class Cluster:
    """A running cluster as its administrator sees it."""

    def __init__(self, kubeconfig: Path, kubectl: Kubectl, api: ApiClient) -> None:
        self.kubeconfig = kubeconfig
        """File that clients are given; it stands alone."""
        self.kubectl = kubectl
        self.api = api
        self._resources = Resources(api)

    def apply(self, manifest: Manifest, namespace: str | None = None) -> None:
        """Apply YAML text, an object, or a list of objects like `kubectl apply --server-side`.

        Objects without a namespace of their own go to `namespace`. Raises Refused with the server's message.
        """
        for one in objects_of(manifest):
            version, kind, meta = str(one["apiVersion"]), str(one["kind"]), one["metadata"]
            group, _, _ = version.rpartition("/")
            resource = self._resources.find(f"{kind}.{group}" if group else kind)
            path = resource.path(meta.get("namespace") or namespace or "default", meta["name"])
            status, answer = self.api.request(
                "PATCH", f"{path}?{APPLYING}", one, content_type=APPLY, timeout=APPLY_SECONDS
            )
            if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
                text = answer.get("message", answer) if isinstance(answer, dict) else answer
                raise Refused(f"{kind} {meta['name']}: {status} {text}")

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return one object, or None when there is none of that name."""
        return self._read(self._resources.find(kind).path(namespace or "default", name))

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind, in one namespace or in all."""
        items: list[dict[str, Any]] = []
        for one in kind.split(","):
            listed = self._read(self._resources.find(one).path(namespace, selector=selector)) or {}
            kind_of = {
                "apiVersion": listed.get("apiVersion"),
                "kind": listed.get("kind", "").removesuffix("List"),
            }
            # In a list the server leaves out what all have in common.
            items += [{**kind_of, **item} for item in listed.get("items", [])]
        return items

    def may(self, user: str, verb: str, resource: str, namespace: str) -> bool:
        """Return whether `user` may do this; `resource` as `PLURAL.GROUP/SUBRESOURCE`."""
        groups = ["system:authenticated"]
        if user.startswith(SERVICE_ACCOUNT):
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
        whole, _, part = resource.partition("/")
        plural, _, group = whole.partition(".")
        review = {
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": part,
        }
        review["subresource"] = part
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes": review},
        }
        status, answer = self.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        if status != HTTPStatus.CREATED:
            raise ClusterError(f"the access of {user} could not be reviewed: {status} {answer}")
        return bool(answer["status"]["allowed"])

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            status, answer = self.api.request("GET", path)
        except OSError as error:
            raise ClusterError(f"GET {path}: {error}") from error
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise ClusterError(f"GET {path}: {status} {answer}")
        body: dict[str, Any] = answer
        return body

    def create_namespace(self, prefix: str = "test", *, timeout: float = 90.0) -> str:
        """Create a namespace and wait for its default service account, which all pods need."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        status, answer = self.api.request("POST", "/api/v1/namespaces", body)
        if status != HTTPStatus.CREATED:
            raise ClusterError(f"namespace {name} could not be made: {status} {answer}")
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait_for(lambda: self.api.answers(account), f"namespace {name} to be usable", timeout=timeout)
        return name

    def delete_namespace(self, name: str) -> None:
        """Request the deletion without waiting: the contents go in the background."""
        try:
            self.api.request("DELETE", f"/api/v1/namespaces/{name}")
        except OSError as error:
            raise ClusterError(f"namespace {name} could not be deleted: {error}") from error

    def wait_established(self, crd: str) -> None:
        """Wait until the API server serves the kind of this CustomResourceDefinition."""

        def established() -> bool:
            # `kubectl wait` ends with an error where the object has no condition yet.
            status = (self.get("customresourcedefinitions", crd) or {}).get("status") or {}
            conditions = status.get("conditions") or []
            return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

        self.wait_for(established, f"{crd} to be established")

    def wait_for(self, look: Callable[[], T], what: str, *, timeout: float = 90.0, every: float = 0.1) -> T:
        """Call `look` every `every` seconds and return its first true value.

        Raises ClusterError naming `what` after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            if value := look():
                return value
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout:g} s for {what}; last seen: {value!r}")
            time.sleep(every)
