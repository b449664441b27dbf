"""Which copies on the volume of a model cache are still needed, and who else uses the volume. Pure.

Called by `model_load` when a loader is made: where room lacks, the loader removes every other copy. Engine
pods say themselves which commit they read; as long as one that mounts the volume does not, nothing may go.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mamba_api import names
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, annotation
from mamba_operator.objects.pod_trouble import has_ended, is_loader
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.revision import revision_in


def commits_in_use(context: Context, snapshot: Snapshot) -> frozenset[str] | None:
    """Collect the commits that pods read, or may read again should a roll-out go back.

    None: somebody uses the volume of whom nobody knows what, and every copy has to stay.
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
    return frozenset(one for one in commits if one) if all(commits) else None


def is_cache_shared(indices: Indices, key: Key) -> bool:
    """Tell whether another MambaDeployment names the volume that is made for this one, or mounts it."""
    claim = names.Children(key.name).model_cache
    others = [
        one
        for one in {*indices.keys(MAMBA_DEPLOYMENT), *indices.keys(POD)} - {key}
        if one.namespace == key.namespace
    ]
    return any(
        _names(_section(_section(owner, "spec"), "model"), claim)
        for other in others
        for owner in indices.of(MAMBA_DEPLOYMENT, other)
    ) or any(_mounts(pod, claim) for other in others for pod in indices.of(POD, other) if not has_ended(pod))


def _mounts(pod: Manifest, claim: str) -> bool:
    volumes: Iterable[Any] = (pod.get("spec") or {}).get("volumes") or ()
    return any((one.get("persistentVolumeClaim") or {}).get("claimName") == claim for one in volumes)


def _names(model: Mapping[str, Any], claim: str) -> bool:
    uri = f"{model.get('uri') or ''}/"
    return _section(model, "cache").get("claimName") == claim or uri.startswith(f"pvc://{claim}/")


def _section(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a spec that may be broken: whatever is no object counts as absent."""
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}
