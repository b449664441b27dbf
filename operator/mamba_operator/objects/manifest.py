"""Plain Kubernetes objects: what a manifest is, how it is identified, hashed and owned. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_api import names

Manifest = dict[str, Any]
"""JSON data of one Kubernetes object; treated as immutable by everyone who did not make it."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which MambaDeployment: all that a reconcile is told."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Which child of a MambaDeployment; the namespace is the owner's."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def name_of(manifest: Manifest) -> str:
    """Name of an object; empty where it says none."""
    return str(metadata(manifest).get("name", ""))


def ref(manifest: Manifest) -> Ref:
    """Kind and name of an object."""
    return Ref(manifest["kind"], manifest["metadata"]["name"])


def metadata(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object's metadata; empty when there is none."""
    return manifest.get("metadata") or {}


def annotation(manifest: Mapping[str, Any], name: str) -> str | None:
    """One annotation."""
    value = (metadata(manifest).get("annotations") or {}).get(name)
    return str(value) if value is not None else None


def digest(data: Any, length: int = 16) -> str:
    """Hash of JSON data that does not depend on the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def owner_uid(manifest: Mapping[str, Any]) -> str | None:
    """uid of the MambaDeployment that controls the object, if one does."""
    owner = _controller(manifest)
    return str(owner.get("uid")) if owner is not None else None


def owner_name(manifest: Mapping[str, Any]) -> str | None:
    """Name of the MambaDeployment that controls the object, if one does."""
    owner = _controller(manifest)
    return str(owner.get("name")) if owner is not None else None


def _controller(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for owner in metadata(manifest).get("ownerReferences") or ():
        group = str(owner.get("apiVersion", "")).partition("/")[0]
        if owner.get("controller") and owner.get("kind") == names.KIND and group == names.GROUP:
            found: Mapping[str, Any] = owner
            return found
    return None


def is_terminating(manifest: Mapping[str, Any]) -> bool:
    """Whether deletion was asked for and the object waits for its finalizers."""
    return bool(metadata(manifest).get("deletionTimestamp"))


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself as annotation, from which the need of an update is read."""
    annotations = {
        **(metadata(manifest).get("annotations") or {}),
        names.ANNOTATION_SPEC_HASH: digest(manifest),
    }
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
