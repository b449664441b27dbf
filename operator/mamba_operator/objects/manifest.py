"""Manifests, which are plain Kubernetes objects: their identity, labels, hash and owner. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_api import names

Manifest = dict[str, Any]
"""JSON data of one Kubernetes object; only the code that creates it may change it."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identity of one MambaDeployment or MambaGateway, the only argument of a reconcile pass."""

    namespace: str
    name: str
    kind: str = names.KIND

    @property
    def instance(self) -> str:
        """Value of the label LABEL_INSTANCE of the object's children."""
        return names.instance(self.kind, self.name)

    def __str__(self) -> str:
        text = f"{self.namespace}/{self.name}"
        return text if self.kind == names.KIND else f"{self.kind} {text}"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Identity of one child of an object; its namespace is the owner's."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def name_of(manifest: Manifest) -> str:
    """Return the name of an object; empty where it has none."""
    return str(metadata(manifest).get("name", ""))


def ref(manifest: Manifest) -> Ref:
    """Return the kind and name of an object."""
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def metadata(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object's metadata; empty when there is none."""
    return manifest.get("metadata") or {}


def section(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the section `name` of a manifest; empty if it is absent or no JSON object."""
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}


def annotation(manifest: Mapping[str, Any], name: str) -> str | None:
    """Return the value of one annotation; None when there is none."""
    value = (metadata(manifest).get("annotations") or {}).get(name)
    return str(value) if value is not None else None


def pod_revision(pod: Manifest) -> str | None:
    """Return the label `revision` of a pod; None without the label, for example for a gateway."""
    return (metadata(pod).get("labels") or {}).get(names.LABEL_REVISION)


def label_of(engine: Manifest) -> str | None:
    """Return the label `revision` of the pods that an engine Deployment creates; None if it sets none."""
    try:
        return str(engine["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])
    except (KeyError, TypeError):
        return None


def digest(data: Any, length: int = 16) -> str:
    """Return a hash of JSON data that does not depend on the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def owner_uid(manifest: Mapping[str, Any]) -> str | None:
    """Return the uid of the MambaDeployment or MambaGateway that controls the object, if one does."""
    owner = _controller(manifest)
    return str(owner.get("uid")) if owner is not None else None


def owner_identity(manifest: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return kind and name of the MambaDeployment or MambaGateway that controls the object, if one does."""
    owner = _controller(manifest)
    return (str(owner["kind"]), str(owner.get("name"))) if owner is not None else None


_KINDS = (names.KIND, names.GATEWAY_KIND)


def _controller(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for owner in metadata(manifest).get("ownerReferences") or ():
        group = str(owner.get("apiVersion", "")).partition("/")[0]
        if owner.get("controller") and owner.get("kind") in _KINDS and group == names.GROUP:
            controller: Mapping[str, Any] = owner
            return controller
    return None


def is_terminating(manifest: Mapping[str, Any]) -> bool:
    """Return whether the object is being deleted but still exists."""
    return bool(metadata(manifest).get("deletionTimestamp"))


def sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with its own hash as annotation, by which an update is detected."""
    annotations = {
        **(metadata(manifest).get("annotations") or {}),
        names.ANNOTATION_SPEC_HASH: digest(manifest),
    }
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
