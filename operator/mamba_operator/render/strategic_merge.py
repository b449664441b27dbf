"""Strategic merge of a user's `podTemplate` into a rendered pod template. Pure; called by `render`.

Lists whose items have an identity (containers, env, volumes, mounts, ports, …) are merged item by item, all
others are replaced; null removes a field. Follows the Kubernetes API conventions, "Strategic Merge Patch",
with one exception: where an item is a choice of one (a volume's source, an env var's value), the patch's
choice replaces ours, because both together would be invalid.
"""

from collections.abc import Mapping
from typing import Any

from mamba_operator.objects.errors import InvalidPatch

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
"""Key that identifies the items of a list, by the name of the field that holds the list."""
ONE_OF: Mapping[str, frozenset[str]] = {"env": frozenset({"value", "valueFrom"})}
"""Fields of which an item of a list holds exactly one, by the name of the list. In `volumes` these are all
fields but the name."""
DIRECTIVE = "$patch"


def merge(base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "podTemplate") -> dict[str, Any]:
    """Return `base` with `patch` merged into it; the result shares no data with either.

    Raises:
        InvalidPatch: the patch has a shape that cannot be merged; the message names the path.
    """
    return {key: _copied(value) for key, value in _merged(base, patch, path).items()}


def _copied(value: Any) -> Any:
    """Return a deep copy of plain data. `copy.deepcopy` takes ten times as long: a fifth of a reconcile."""
    match value:
        case Mapping():
            return {key: _copied(item) for key, item in value.items()}
        case list():
            return [_copied(item) for item in value]
    return value


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Merge like `merge`; the result shares data with `base` and `patch`."""
    match patch.get(DIRECTIVE):
        case None | "merge":
            pass
        case "replace":
            return {key: value for key, value in patch.items() if key != DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise InvalidPatch(f"{path}.{DIRECTIVE}: {other!r} is none of merge, replace, delete")
    result = dict(base)
    for key, value in patch.items():
        where = f"{path}.{key}"
        if key == DIRECTIVE:
            continue
        if key.startswith("$"):
            raise InvalidPatch(f"{where}: this directive is not supported; the only one is {DIRECTIVE}")
        old = result.get(key)
        _check_shape(key, old, value, where)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _merged(_same_source(key, old or {}, value), value, where)
        elif isinstance(value, list):
            result[key] = _merge_list(key, old or [], value, where)
        else:
            result[key] = value
    return result


def _check_shape(field: str, base: Any, patch: Any, path: str) -> None:
    """Check that an object stays an object, a list a list, and a single value a single value.

    Raises InvalidPatch.
    """
    if patch is None:
        return
    if isinstance(base, list) or field in MERGE_KEYS:
        fits, shape = isinstance(patch, list), "a list"
    elif isinstance(base, dict):
        fits, shape = isinstance(patch, dict), "an object"
    else:
        fits, shape = base is None or not isinstance(patch, dict | list), "a single value"
    if not fits:
        raise InvalidPatch(f"{path}: {shape} is needed here, not {type(patch).__name__}")


def _merge_list(field: str, base: list[Any], patch: list[Any], path: str) -> list[Any]:
    identity = MERGE_KEYS.get(field)
    if identity is None:
        return patch
    items = [_checked(item, f"{path}[{index}]") for index, item in enumerate(patch)]
    if any(item == {DIRECTIVE: "replace"} for item in items):
        return [item for item in items if DIRECTIVE not in item]
    result: list[Any] = list(base)
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        if identity not in item:
            raise InvalidPatch(f"{where}: an item of {field} needs {identity}, which identifies it")
        position = _position(result, identity, item[identity])
        if item.get(DIRECTIVE) == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(_merged({}, item, where))
        else:
            result[position] = _merged(_narrowed(field, identity, result[position], item), item, where)
    return result


def _checked(item: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidPatch(f"{path}: an object is needed here, not {type(item).__name__}")
    return item


def _position(items: list[Any], identity: str, value: Any) -> int | None:
    return next(
        (
            index
            for index, item in enumerate(items)
            if isinstance(item, Mapping) and item.get(identity) == value
        ),
        None,
    )


def _same_source(field: str, base: Mapping[str, Any], patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `base`; empty if the patch takes an environment variable's value from another kind of source."""
    return {} if field == "valueFrom" and not base.keys() & patch.keys() else base


def _narrowed(
    field: str, identity: str, base: Mapping[str, Any], patch: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return `base` without the choices that the patch replaces."""
    choices = set(base) - {identity} if field == "volumes" else set(ONE_OF.get(field, ()))
    chosen = {key for key in patch if key in (choices | ONE_OF.get(field, frozenset())) or field == "volumes"}
    if not chosen - {identity, DIRECTIVE}:
        return base
    return {key: value for key, value in base.items() if key not in choices or key in chosen}
