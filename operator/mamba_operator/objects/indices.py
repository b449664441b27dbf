"""`Indices`: the objects that kopf's watches hold, by their owner. Reading them costs no request.

They may lag behind the cluster. So a pass only concludes from them that it has nothing to do. kopf fills
them, `observe` reads them, and each resync compares them with lists. Children that the operator has just
created are included before a watch shows them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from sys import intern
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import BY_NAME, MAMBA_DEPLOYMENT, OWNERS, WATCHED, Kind
from mamba_operator.objects.manifest import Key, Manifest, metadata

MAX_SHARED_CHARACTERS = 64
"""Length up to which equal texts are stored only once; longer texts are rarely equal."""
CREATED_LIFETIME = 30.0
"""Seconds for which a created child counts as existing although no watch has shown it."""


def owner_key(kind: Kind, body: Mapping[str, Any]) -> Key | None:
    """Return the custom object to which an object belongs; None when it belongs to none."""
    meta = metadata(body)
    namespace, name = meta.get("namespace"), meta.get("name")
    owner_kind = kind.kind
    if kind not in OWNERS:
        label = (meta.get("labels") or {}).get(names.LABEL_INSTANCE)
        owner_kind, name = names.owner_of_instance(str(label)) if label else ("", "")
    return Key(str(namespace), str(name), owner_kind) if namespace and name else None


def index_id(kind: Kind) -> str:
    """Return the name of a kind's index in kopf."""
    return f"of_{kind.plural}"


def indexed(kind: Kind, body: Mapping[str, Any]) -> dict[Key, Manifest]:
    """Return the index entry of an object; empty when it belongs to no custom object."""
    key = owner_key(kind, body)
    return {} if key is None else {key: compact(_without_managed_fields(kind, body))}


def _without_managed_fields(kind: Kind, body: Mapping[str, Any]) -> Manifest:
    """Return the object without its managed fields, with its kind filled in."""
    meta = {name: value for name, value in metadata(body).items() if name != "managedFields"}
    return {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}


def compact(value: Any) -> Any:
    """Return the same plain data with equal short texts stored once, in less than half the memory."""
    match value:
        case dict():
            return {intern(name): compact(item) for name, item in value.items()}
        case list():
            return [compact(item) for item in value]
        case str() if len(value) <= MAX_SHARED_CHARACTERS:
            return intern(value)
    return value


class Indices:
    """The objects that watches have shown, by their owner. One instance per active operator.

    All indices are empty until kopf has listed the objects.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._by_id: Mapping[str, Any] = {}
        self._now = now
        self._created: dict[Key, dict[str, tuple[Kind, Manifest, float]]] = {}
        """Created children that watches have not shown yet: by owner and uid, the kind, the object and the
        time of creation."""
        self.complete = False
        """Whether kopf has listed everything; set with the first event, which kopf delivers afterwards."""

    def take(self, by_id: Mapping[str, Any]) -> None:
        """Use the indices of kopf, which kopf keeps up to date."""
        self._by_id = by_id

    def add_created(self, manifest: Manifest) -> None:
        """Add a child that the operator has just created, so that the next pass need not read it."""
        kind = BY_NAME[manifest["kind"]]
        if kind not in WATCHED:
            return
        key = owner_key(kind, manifest)
        if key is not None and _uid(manifest) not in map(_uid, self._watched(kind, key)):
            # Not compact: the copy that a watch delivers soon replaces it.
            self._created.setdefault(key, {})[_uid(manifest)] = (
                kind,
                _without_managed_fields(kind, manifest),
                self._now(),
            )

    def confirm(self, key: Key, manifest: Manifest) -> None:
        """Record that a watch has shown an object of `key` or its deletion: the index decides from now on."""
        created = self._created.get(key, {})
        created.pop(_uid(manifest), None)
        if not created:
            self._created.pop(key, None)

    def expire_unconfirmed(self) -> None:
        """Drop created children that watches have not shown within `CREATED_LIFETIME`.

        A child whose owner was deleted while its watch was broken is not read by any pass, so it would
        otherwise stay forever.
        """
        now = self._now()
        for key, created in list(self._created.items()):
            recent = {uid: child for uid, child in created.items() if now - child[2] < CREATED_LIFETIME}
            if recent:
                self._created[key] = recent
            else:
                del self._created[key]

    @property
    def unconfirmed(self) -> int:
        """Number of created children that watches have not shown yet."""
        return sum(map(len, self._created.values()))

    def of(self, kind: Kind, key: Key) -> list[Manifest]:
        """Return the objects of a kind that belong to `key`, sorted by name."""
        objects = self._watched(kind, key)
        if key in self._created:
            objects = objects + self._unconfirmed(kind, key, objects)
        return sorted(objects, key=lambda manifest: str(manifest["metadata"]["name"]))

    def _watched(self, kind: Kind, key: Key) -> list[Manifest]:
        """Return the objects that watches have shown, in no order."""
        index = self._by_id.get(index_id(kind)) or {}
        return list(index[key]) if key in index else []

    def _unconfirmed(self, kind: Kind, key: Key, watched: Iterable[Manifest]) -> list[Manifest]:
        watched_uids, now = set(map(_uid, watched)), self._now()
        return [
            manifest
            for uid, (child_kind, manifest, since) in self._created[key].items()
            # The limit is for a child whose deletion was seen before its creation was recorded.
            if child_kind is kind and uid not in watched_uids and now - since < CREATED_LIFETIME
        ]

    def keys(self, kind: Kind) -> list[Key]:
        """Return the sorted keys that have objects of a kind."""
        return sorted(self._by_id.get(index_id(kind)) or ())

    def childless(self, key: Key) -> Manifest | None:
        """Return the MambaDeployment if the watches are complete and show no child of it; otherwise None."""
        owners = self.of(MAMBA_DEPLOYMENT, key) if self.complete else []
        return owners[0] if len(owners) == 1 and not any(self.of(kind, key) for kind in WATCHED) else None

    def differing(self, kind: Kind, listed: Iterable[Manifest]) -> set[Key]:
        """Return the keys whose listed objects differ from the index in version or existence."""
        index = self._by_id.get(index_id(kind)) or {}
        indexed_ids = {_identity(key, manifest) for key in list(index) for manifest in index[key]}
        listed_ids = {
            _identity(key, manifest) for manifest in listed if (key := owner_key(kind, manifest)) is not None
        }
        return {key for key, *_ in indexed_ids ^ listed_ids}


def _uid(manifest: Manifest) -> str:
    return str(metadata(manifest).get("uid"))


def _identity(key: Key, manifest: Manifest) -> tuple[Key, str, str]:
    meta = metadata(manifest)
    return key, _uid(manifest), str(meta.get("resourceVersion"))
