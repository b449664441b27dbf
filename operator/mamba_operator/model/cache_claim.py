"""The claim of `spec.model.cache`, and its fields that cannot be changed. Pure.

Called by `child_comparison`.
"""

from mamba_api.quantity import parse_quantity
from mamba_operator.objects.manifest import Manifest, metadata


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
        f"PersistentVolumeClaim {name} {' and '.join(differences)}: a claim cannot be changed in that way, "
        "and it is used as it is; delete it (the model is downloaded again), or undo the change of "
        "spec.model.cache"
    )


def _size_difference(new: str | None, old: str | None, observed: Manifest) -> str | None:
    if new is None or old is None or parse_quantity(new) == parse_quantity(old):
        return None
    if parse_quantity(new) < parse_quantity(old):
        return f"has {old}, which cannot shrink to {new}"
    if (phase := (observed.get("status") or {}).get("phase")) != "Bound":
        return f"has {old} and cannot grow to {new} while it is {phase or 'Pending'}"
    return None


def _size(spec: Manifest) -> str | None:
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return str(size) if size is not None else None
