"""`Indices`: what kopf's watches hold, by the MambaDeployment it belongs to. A look at them costs no request.

They may lag behind the cluster, so they decide one thing: that a pass has nothing to do. Filled by kopf,
read by `observe`, compared with lists at each resync. Children that were just made are among them before a
watch shows them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from sys import intern
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import BY_NAME, MAMBA_DEPLOYMENT, WATCHED, Kind
from mamba_operator.objects.manifest import Key, Manifest, metadata

LONGEST_WORD = 64
"""Longer texts are seldom the same in two objects."""
CREATED_LIFETIME = 30.0
"""Seconds for which a created child counts as existing without a watch having shown it."""


def owner_key(kind: Kind, body: Mapping[str, Any]) -> Key | None:
    """The MambaDeployment an object belongs to; None when it is nobody's."""
    meta = metadata(body)
    namespace, name = meta.get("namespace"), meta.get("name")
    if kind is not MAMBA_DEPLOYMENT:
        name = (meta.get("labels") or {}).get(names.LABEL_INSTANCE)
    return Key(str(namespace), str(name)) if namespace and name else None


def index_id(kind: Kind) -> str:
    """What kopf calls the index of a kind."""
    return f"of_{kind.plural}"


def indexed(kind: Kind, body: Mapping[str, Any]) -> dict[Key, Manifest]:
    """The index entry of an object; empty when it belongs to no MambaDeployment."""
    key = owner_key(kind, body)
    return {} if key is None else {key: compact(_without_managed_fields(kind, body))}


def _without_managed_fields(kind: Kind, body: Mapping[str, Any]) -> Manifest:
    """The object without its managed fields."""
    meta = {name: value for name, value in metadata(body).items() if name != "managedFields"}
    return {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}


def compact(value: Any) -> Any:
    """The same plain data with its words kept once, however many objects use them: it takes less than half
    the memory."""
    match value:
        case dict():
            return {intern(name): compact(one) for name, one in value.items()}
        case list():
            return [compact(one) for one in value]
        case str() if len(value) <= LONGEST_WORD:
            return intern(value)
    return value


class Indices:
    """One per operator that acts; empty until kopf has listed everything once."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._by_id: Mapping[str, Any] = {}
        self._now = now
        self._created: dict[Key, dict[str, tuple[Kind, Manifest, float]]] = {}
        """By owner and uid: (kind, object, time of creation) of children that no watch has shown yet."""
        self.complete = False
        """Set with the first event: kopf hands none over before it has listed everything."""

    def take(self, by_id: Mapping[str, Any]) -> None:
        """kopf's own indices, which it keeps up to date."""
        self._by_id = by_id

    def add_created(self, manifest: Manifest) -> None:
        """Add a child that the operator just created, so that the next pass need not read it from the
        cluster."""
        kind = BY_NAME[manifest["kind"]]
        if kind not in WATCHED:
            return
        key = owner_key(kind, manifest)
        if key is not None and _uid(manifest) not in map(_uid, self._watched(kind, key)):
            # Not compact: a watch shows it in a moment, and that is what stays.
            self._created.setdefault(key, {})[_uid(manifest)] = (
                kind,
                _without_managed_fields(kind, manifest),
                self._now(),
            )

    def confirm(self, key: Key, manifest: Manifest) -> None:
        """A watch has shown an object of `key`, or its deletion: from now on the index of the watch
        decides."""
        created = self._created.get(key, {})
        created.pop(_uid(manifest), None)
        if not created:
            self._created.pop(key, None)

    def expire_unconfirmed(self) -> None:
        """Drop created children that no watch has shown within `CREATED_LIFETIME`.

        A child whose owner was deleted while its watch was broken is read by no pass and would stay for ever.
        """
        now = self._now()
        for key, created in list(self._created.items()):
            left = {uid: one for uid, one in created.items() if now - one[2] < CREATED_LIFETIME}
            if left:
                self._created[key] = left
            else:
                del self._created[key]

    @property
    def unconfirmed(self) -> int:
        """Number of created children that no watch has shown yet."""
        return sum(map(len, self._created.values()))

    def of(self, kind: Kind, key: Key) -> list[Manifest]:
        """Objects of a kind that belong to `key`, by name."""
        found = self._watched(kind, key)
        if key in self._created:
            found = found + self._unconfirmed(kind, key, found)
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    def _watched(self, kind: Kind, key: Key) -> list[Manifest]:
        """The objects that watches have shown, in no order."""
        index = self._by_id.get(index_id(kind)) or {}
        return list(index[key]) if key in index else []

    def _unconfirmed(self, kind: Kind, key: Key, watched: Iterable[Manifest]) -> list[Manifest]:
        there, now = set(map(_uid, watched)), self._now()
        return [
            one
            for uid, (of, one, since) in self._created[key].items()
            # One that came and went before its maker was told would stay for ever.
            if of is kind and uid not in there and now - since < CREATED_LIFETIME
        ]

    def keys(self, kind: Kind) -> list[Key]:
        """Whose objects of a kind there are, sorted."""
        return sorted(self._by_id.get(index_id(kind)) or ())

    def childless(self, key: Key) -> Manifest | None:
        """The MambaDeployment, if the watches have seen all there is and no child or pod of it among that."""
        owners = self.of(MAMBA_DEPLOYMENT, key) if self.complete else []
        return owners[0] if len(owners) == 1 and not any(self.of(kind, key) for kind in WATCHED) else None

    def differing(self, kind: Kind, listed: Iterable[Manifest]) -> set[Key]:
        """Whose objects a list shows in another version than the index has, or not at all."""
        index = self._by_id.get(index_id(kind)) or {}
        indexed_ids = {_identity(key, one) for key in list(index) for one in index[key]}
        listed_ids = {_identity(key, one) for one in listed if (key := owner_key(kind, one)) is not None}
        return {key for key, *_ in indexed_ids ^ listed_ids}


def _uid(manifest: Manifest) -> str:
    return str(metadata(manifest).get("uid"))


def _identity(key: Key, manifest: Manifest) -> tuple[Key, str, str]:
    meta = metadata(manifest)
    return key, _uid(manifest), str(meta.get("resourceVersion"))
