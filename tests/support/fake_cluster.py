"""An API server in memory with the surface of `KubeClient`: versions, generations, conflicts, faults.

For unit tests of the operator's effects alone; what only a real API server knows is tested on a real one.
"""

import builtins
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict, NotFound, ObjectRejected
from mamba_operator.objects.indices import Indices, owner_key
from mamba_operator.objects.kinds import BY_NAME, Kind
from mamba_operator.objects.manifest import Key, Manifest

Fault = Callable[[str, str, str], ClusterError | None]
"""(verb, kind, name) -> what to raise instead."""


def copied(value: Any) -> Any:
    """Return a deep copy.

    These objects are plain data, which pickle copies in a fifth of the time of `copy`.
    """
    return pickle.loads(pickle.dumps(value))


METHODS = {
    "get": "GET", "list": "GET", "apply": "PATCH", "make": "POST", "create": "POST", "replace": "PUT",
    "merge": "PATCH", "delete": "DELETE",
}  # fmt: skip
"""HTTP method by verb."""


class FakeCluster(KubeClient):
    """Objects by (kind, namespace, name); `calls` records every write as "verb Kind/name"."""

    def __init__(self, *objects: Manifest) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.calls: list[str] = []
        self.fault: Fault = lambda *_: None
        self._version = 1000
        for one in objects:
            self.put(one)

    def put(self, one: Manifest) -> Manifest:
        """Store an object as it is, with a new version."""
        self._version += 1
        stored = copied(one)
        meta = stored["metadata"]
        meta["resourceVersion"] = str(self._version)
        meta.setdefault("uid", f"uid-{self._version}")
        meta.setdefault("generation", 1)
        self.objects[stored["kind"], meta.get("namespace", ""), meta["name"]] = stored
        return copied(stored)

    def find(self, kind: str, name: str, namespace: str = "models") -> Manifest | None:
        """Return the stored object, or None."""
        return self.objects.get((kind, namespace, name))

    def _enter(self, verb: str, kind: str, name: str) -> None:
        self.counted(METHODS[verb.partition("/")[0]], f"{kind.lower()}s")
        if verb not in ("get", "list"):
            self.calls.append(f"{verb} {kind}/{name}")
        if (error := self.fault(verb, kind, name)) is not None:
            raise error

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        self._enter("get", kind.kind, name)
        return copied(self.objects.get((kind.kind, namespace or "", name)))

    async def pages(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        selector: str = "",
        name: str = "",
        metadata_only: bool = False,
        page: int = 500,
    ) -> AsyncIterator[builtins.list[Manifest]]:
        self._enter("list", kind.kind, name)
        pairs = [part.partition("=") for part in selector.split(",") if part]
        collected = []
        for (of, where, called), one in self.objects.items():
            labels = one["metadata"].get("labels") or {}
            matches = all(
                key in labels and (not equals or labels[key] == value) for key, equals, value in pairs
            )
            if of == kind.kind and namespace in (None, where) and name in ("", called) and matches:
                collected.append(copied(one))
        yield collected

    async def apply(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Manifest:
        meta = manifest["metadata"]
        if dry_run:
            return copied(manifest)
        self._enter(f"apply{'/' if subresource else ''}{subresource}", manifest["kind"], meta["name"])
        key = (manifest["kind"], meta.get("namespace", ""), meta["name"])
        old = self.objects.get(key)
        if subresource:
            if old is None:
                raise NotFound("gone", status=404)
            if old["metadata"]["resourceVersion"] != meta.get("resourceVersion"):
                raise Conflict("changed", status=409)
            return self.put({**old, "status": _status(old.get("status") or {}, manifest["status"])})
        version = meta.get("resourceVersion")
        if old is not None and version not in (None, old["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified", status=409)
        _check_uid(old, meta)
        kept = {"uid": old["metadata"]["uid"]} if old else {}
        fresh = {**copied(manifest), "metadata": {**copied(meta), **kept}}
        if old is not None and _equal(old, fresh):
            return copied(old)
        if old is not None and "status" in old:
            fresh["status"] = old["status"]
        return self.put(fresh)

    async def make(self, manifest: Manifest) -> Manifest:
        meta = manifest["metadata"]
        self._enter("make", manifest["kind"], meta["name"])
        if (manifest["kind"], meta.get("namespace", ""), meta["name"]) in self.objects:
            raise Conflict("exists", status=409)
        return self.put(manifest)

    async def create(self, manifest: Manifest, *, validation: str = "Ignore") -> Manifest:
        meta = manifest["metadata"]
        self._enter("create", manifest["kind"], meta["name"])
        if (manifest["kind"], meta.get("namespace", ""), meta["name"]) in self.objects:
            raise Conflict("exists", status=409)
        created = copied(manifest)
        if "stringData" in created:
            created["data"] = created.pop("stringData")
        return self.put(created)

    async def replace(self, manifest: Manifest) -> Manifest:
        meta = manifest["metadata"]
        self._enter("replace", manifest["kind"], meta["name"])
        old = self.objects.get((manifest["kind"], meta.get("namespace", ""), meta["name"]))
        if old is None:
            raise NotFound("gone", status=404)
        if old["metadata"]["resourceVersion"] != meta.get("resourceVersion"):
            raise Conflict("changed", status=409)
        return self.put(manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        self._enter("merge", kind.kind, name)
        old = self.objects.get((kind.kind, namespace, name))
        if old is None:
            raise NotFound("gone", status=404)
        return self.put(_merged(old, patch))

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._enter("delete", kind.kind, name)
        old = self.objects.get((kind.kind, namespace, name))
        if old is not None and old["metadata"]["uid"] != uid:
            raise Conflict("another one", status=409)
        self.objects.pop((kind.kind, namespace, name), None)

    async def serves(self, kind: Kind) -> bool:
        self._enter("get", "APIResourceList", kind.plural)
        return kind.kind in BY_NAME


def _merged(old: Any, patch: Any) -> Any:
    """Merge as RFC 7396 defines."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _check_uid(old: Manifest | None, meta: Mapping[str, Any]) -> None:
    """Refuse an apply that names the uid of another object, with the answers of a real API server."""
    if "uid" in meta and old is None:
        raise Conflict("uid mismatch: no existing object was found", status=409)
    if "uid" in meta and old is not None and old["metadata"]["uid"] != meta["uid"]:
        raise ObjectRejected("metadata.uid: Invalid value: field is immutable", status=422)


def _status(old: Manifest, applied: Manifest) -> Manifest:
    """Merge conditions by their type: those of other managers stay."""
    types = {one["type"] for one in applied.get("conditions") or ()}
    kept = old.get("conditions")
    others = [one for one in kept if one.get("type") not in types] if isinstance(kept, list) else []
    return {
        **copied(applied),
        "conditions": [*copied(applied.get("conditions") or []), *others],
    }


def _equal(old: Manifest, new: Manifest) -> bool:
    def bare(one: Manifest) -> Manifest:
        meta = {
            key: value
            for key, value in one["metadata"].items()
            if key not in ("uid", "resourceVersion", "generation")
        }
        return {**{key: value for key, value in one.items() if key != "status"}, "metadata": meta}

    return bare(old) == bare(new)


class Watched(Indices):
    """Watch caches of a `FakeCluster`: all objects, or those at the moment when the watches stalled."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self.complete = True
        self._objects = cluster.objects

    def stand_still(self) -> None:
        """Stop the delivery of events."""
        self._objects = copied(self._objects)

    def _watched(self, kind: Kind, key: Key) -> list[Manifest]:
        objects = [one for of, one in self._objects.items() if of[0] == kind.kind]
        mine = [one for one in objects if owner_key(kind, one) == key]
        for one in mine:
            self.confirm(key, one)
        return [copied({**one, "apiVersion": kind.api_version}) for one in mine]
