"""Copies on the volume of a model cache that are still needed, and other users of the volume. Pure.

Called by `model_load` when a loader is created, and by `reconcile`. A loader that lacks room removes every
other copy. An annotation of each engine pod names the commit that it reads; while a pod that mounts the
volume has none, no copy may be removed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mamba_api import names
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, annotation, section
from mamba_operator.objects.pod_trouble import has_ended, is_loader
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.revision import revision_in


def commits_in_use(context: Context, snapshot: Snapshot) -> frozenset[str] | None:
    """Return the commits that pods read, or may read again after a roll-back.

    None means that an unknown commit is in use, so that every copy has to stay.
    """
    if snapshot.cache_shared:
        return None
    claim = context.children.model_cache
    engine = snapshot.child("Deployment", context.children.engine)
    last_ready = revision_in(snapshot.child("ConfigMap", context.children.last_ready))
    users = [pod for pod in snapshot.pods if not (is_loader(pod) or has_ended(pod))]
    users += [engine["spec"]["template"]] if engine is not None else []
    users += [last_ready.template] if last_ready is not None else []
    commits = {annotation(user, names.ANNOTATION_COMMIT) for user in users if _mounts(user, claim)}
    return frozenset(commit for commit in commits if commit) if all(commits) else None


def is_cache_shared(indices: Indices, key: Key) -> bool:
    """Return whether another MambaDeployment names the volume that is created for this one, or mounts it."""
    claim = names.Children(key.name).model_cache
    others = [
        other
        for other in {*indices.keys(MAMBA_DEPLOYMENT), *indices.keys(POD)} - {key}
        if other.namespace == key.namespace
    ]
    return any(
        _names(section(section(owner, "spec"), "model"), claim)
        for other in others
        for owner in indices.of(MAMBA_DEPLOYMENT, other)
    ) or any(_mounts(pod, claim) for other in others for pod in indices.of(POD, other) if not has_ended(pod))


def _mounts(pod: Manifest, claim: str) -> bool:
    volumes: Iterable[Any] = (pod.get("spec") or {}).get("volumes") or ()
    return any((volume.get("persistentVolumeClaim") or {}).get("claimName") == claim for volume in volumes)


def _names(model: Mapping[str, Any], claim: str) -> bool:
    uri = f"{model.get('uri') or ''}/"
    return section(model, "cache").get("claimName") == claim or uri.startswith(f"pvc://{claim}/")
