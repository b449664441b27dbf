"""The claim of `spec.model.cache`, and what of it nobody can change. Pure; called by `plan`."""

from mamba_api.quantity import parse_quantity
from mamba_operator.objects.manifest import Manifest, metadata


def why_unchanged(wanted: Manifest, observed: Manifest) -> str | None:
    """Why the claim that is there stays as it is, and what to do; None when it can be made what is wanted.

    Class and access modes of a claim never change, its size only grows, and that only once it is bound. To
    apply such a change would be refused again and again.
    """
    want, have = wanted["spec"], observed.get("spec") or {}
    differing = []
    if (modes := have.get("accessModes")) and modes != want["accessModes"]:
        differing.append(f"has access mode {', '.join(modes)}, not {', '.join(want['accessModes'])}")
    asked, given = want.get("storageClassName"), have.get("storageClassName")
    if asked is not None and given is not None and asked != given:
        differing.append(f"has storage class {given}, not {asked}")
    size, old = _size(want), _size(have)
    if size is not None and old is not None and parse_quantity(size) != parse_quantity(old):
        if parse_quantity(size) < parse_quantity(old):
            differing.append(f"has {old}, which cannot shrink to {size}")
        elif (phase := (observed.get("status") or {}).get("phase")) != "Bound":
            differing.append(f"has {old} and cannot grow to {size} while it is {phase or 'Pending'}")
    if not differing:
        return None
    name = metadata(observed).get("name")
    return (
        f"PersistentVolumeClaim {name} {' and '.join(differing)}: a claim cannot be changed so, and it is "
        "used as it is; delete it (the model is downloaded again), or set spec.model.cache back"
    )


def _size(spec: Manifest) -> str | None:
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return str(size) if size is not None else None
