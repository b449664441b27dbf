"""The volume of the model cache: why its claim stays unchanged, which copies are needed, who uses it. Pure.

Called by `child_comparison`, by `model_load` when a loader is created, and by `reconcile`. The volume holds a
copy of the model for each commit. A loader that lacks room removes the copies that are not needed. An
annotation of each engine pod names the commits that the pod reads; while a pod that mounts the volume has
none, no copy may be removed. The commits of adapters stand in the settings of the engines.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mamba_api import names
from mamba_api.choices import ROLES
from mamba_api.model_uri import is_model_uri, parse_model_uri
from mamba_api.quantity import parse_quantity
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, POD
from mamba_operator.objects.manifest import Key, Manifest, annotation, metadata, section
from mamba_operator.objects.pod_trouble import has_ended, is_loader
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.engine import adapters_in, revision_in, settings_in
from mamba_settings.adapter_settings import paths_of


def why_unchanged(desired: Manifest, observed: Manifest) -> str | None:
    """Return why the existing claim cannot become the desired one, and what to do; None if it can.

    The class and the access modes of a claim never change; its size may only grow, and only once the claim is
    bound. The API server would refuse any other change in every pass.
    """
    new, old = desired["spec"], observed.get("spec") or {}
    differences = []
    if (modes := old.get("accessModes")) and modes != new["accessModes"]:
        differences.append(f"has access mode {', '.join(modes)}, not {', '.join(new['accessModes'])}")
    new_class, old_class = new.get("storageClassName"), old.get("storageClassName")
    if new_class is not None and old_class is not None and new_class != old_class:
        differences.append(f"has storage class {old_class}, not {new_class}")
    if (size_difference := _size_difference(_size(new), _size(old), observed)) is not None:
        differences.append(size_difference)
    if not differences:
        return None
    name = metadata(observed).get("name")
    return (
        f"PersistentVolumeClaim {name} {' and '.join(differences)}: Kubernetes cannot change a claim in that "
        "way, and engines use it as it is; delete it (the operator creates it and downloads the model "
        "again), or undo the change of spec.model.cache"
    )


def _size_difference(new: str | None, old: str | None, observed: Manifest) -> str | None:
    if new is None or old is None or parse_quantity(new) == parse_quantity(old):
        return None
    if parse_quantity(new) < parse_quantity(old):
        return f"has {old}, which cannot shrink to {new}"
    if (phase := (observed.get("status") or {}).get("phase")) != "Bound":
        return f"has {old} and can grow to {new} only once it is Bound (it is {phase or 'Pending'} now)"
    return None


def _size(spec: Manifest) -> str | None:
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return str(size) if size is not None else None


def commits_in_use(context: Context, snapshot: Snapshot) -> frozenset[str] | None:
    """Return the commits that pods read, or may read again after a roll-back; None = keep every copy.

    None means that an unknown commit may be in use: another MambaDeployment uses the volume, or a pod that
    mounts it does not name its commit.
    """
    if snapshot.cache_shared:
        return None
    claim = context.children.model_cache
    users = [pod for pod in snapshot.pods if not (is_loader(pod) or has_ended(pod))]
    for role in ROLES:
        of_role = names.Children(context.deployment.name, role)
        engine = snapshot.child("Deployment", of_role.engine)
        last_ready = revision_in(snapshot.child("ConfigMap", of_role.last_ready))
        users += [engine["spec"]["template"]] if engine is not None else []
        users += [last_ready.template] if last_ready is not None else []
    texts = {annotation(user, names.ANNOTATION_COMMIT) for user in users if _mounts(user, claim)}
    if not all(texts):
        return None
    commits = {commit for text in texts if text for commit in text.split()}
    return frozenset(commits | _adapters_in_use(context, snapshot))


def _adapters_in_use(context: Context, snapshot: Snapshot) -> set[str]:
    """Return the commits of the adapters that engines load now, or loaded when they were last ready."""
    documents = []
    for role in ROLES:
        of_role = names.Children(context.deployment.name, role)
        last_ready = revision_in(snapshot.child("ConfigMap", of_role.last_ready))
        documents += [settings_in(snapshot.child("ConfigMap", of_role.engine))]
        documents += [last_ready.document] if last_ready is not None else []
    uris = [uri for document in documents for uri in paths_of(adapters_in(document)).values()]
    pins = (parse_model_uri(uri).pin for uri in uris if is_model_uri(uri))
    return {commit for commit in pins if commit}


def is_cache_shared(indices: Indices, key: Key) -> bool:
    """Return whether another MambaDeployment names the volume created for this one, or mounts it."""
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
