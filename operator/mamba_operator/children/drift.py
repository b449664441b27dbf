"""Drift: where an observed child differs from what we want, field by field. Pure; called by `plan`.

Only fields that we set are compared: defaults of the API server and fields of other managers are theirs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from mamba_api.quantity import SUFFIXES
from mamba_operator.objects.manifest import Manifest, digest

IDENTITIES: Sequence[tuple[str, ...]] = (
    ("name",), ("containerPort", "protocol"), ("port", "protocol"), ("mountPath",), ("key", "operator"),
    ("uid",), ("topologyKey",),
)  # fmt: skip
"""What tells the items of a list apart, first match wins."""
QUANTITIES = frozenset({"requests", "limits", "hard", "storage", "sizeLimit", "overhead", "divisor"})
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]*))", re.ASCII)
WHOLE = frozenset({"selector", "nodeSelector"})
"""Fields whose every key counts: one more that somebody adds chooses other pods, or other nodes."""
IGNORED = frozenset({"apiVersion", "kind", "stringData"})
"""Identity of the object itself, and what the API server turns into something else."""
MAX_PATHS = 5


def drift(desired: Manifest, observed: Manifest) -> list[str]:
    """Paths of the fields we want and do not see, the first few; empty = all is as wanted."""
    found: list[str] = []
    for path in _differences(desired, observed, ""):
        found.append(path)
        if len(found) == MAX_PATHS:
            break
    return found


def made_of(desired: Manifest, observed: Manifest) -> str:
    """Hash of what the API server has for `desired`: its status and what others noted on it are left out."""
    meta = observed.get("metadata") or {}
    ours = (desired.get("metadata") or {}).get("annotations") or {}
    notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key in ours}
    rest = {key: value for key, value in observed.items() if key not in ("metadata", "status")}
    return digest([rest, meta.get("labels"), notes])


def _differences(desired: Any, observed: Any, path: str, *, quantity: bool = False) -> Iterator[str]:
    match desired:
        case Mapping():
            if not isinstance(observed, Mapping):
                # An empty object is dropped by the API server: wanting it and not seeing it is no drift.
                if desired or observed is not None:
                    yield path
                return
            for key, value in desired.items():
                if not path and key in IGNORED:
                    continue
                if key in WHOLE and _has_more(observed.get(key), value):
                    yield f"{path}.{key}" if path else key
                    continue
                yield from _differences(
                    value,
                    observed.get(key),
                    f"{path}.{key}" if path else key,
                    quantity=quantity or key in QUANTITIES,
                )
        case list():
            if not isinstance(observed, list):
                if desired or observed is not None:
                    yield path
                return
            yield from _list_differences(desired, observed, path)
        case _:
            if not _same(desired, observed, quantity):
                yield path


def _has_more(observed: Any, desired: Any) -> bool:
    both = isinstance(observed, Mapping) and isinstance(desired, Mapping)
    return both and not observed.keys() <= desired.keys()


def _list_differences(desired: list[Any], observed: list[Any], path: str) -> Iterator[str]:
    identity = _identity(desired)
    if identity is None:
        if len(desired) != len(observed):
            yield path
            return
        for index, (wanted, seen) in enumerate(zip(desired, observed, strict=True)):
            yield from _differences(wanted, seen, f"{path}[{index}]")
        return
    by_identity = {
        tuple(item.get(key) for key in identity): item for item in observed if isinstance(item, Mapping)
    }
    for wanted in desired:
        value = tuple(wanted.get(key) for key in identity)
        where = f"{path}[{value[0]}]"
        if value not in by_identity:
            yield where
        else:
            yield from _differences(wanted, by_identity[value], where)


def _identity(items: list[Any]) -> tuple[str, ...] | None:
    """The fields that all items have and that tell them apart."""
    if not items or not all(isinstance(item, Mapping) for item in items):
        return None
    for keys in IDENTITIES:
        values = [tuple(item.get(key) for key in keys) for item in items]
        if all(keys[0] in item for item in items) and all(
            key in item for item in items for key in keys[1:]
        ) and len(set(map(repr, values))) == len(values):  # fmt: skip
            return keys
    return None


def _same(desired: Any, observed: Any, quantity: bool) -> bool:
    if quantity:
        wanted, seen = _units(desired), _units(observed)
        if wanted is not None and seen is not None:
            return wanted == seen
    # The API server drops empty strings and false of omitempty fields.
    if observed is None and desired in ("", False, 0):
        return True
    return bool(desired == observed) and isinstance(desired, bool) == isinstance(observed, bool)


def _units(value: Any) -> Decimal | None:
    """What a quantity amounts to, in every notation that a pod template may use; None = it is none.

    Wider than the quantities of our own contract: the API server also reads 129e6, .5, +1 and a bare 0.5, and
    gives back another spelling of the same amount.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    if exponent:
        return Decimal(number + exponent)
    return Decimal(number) * SUFFIXES[suffix] if suffix in SUFFIXES else None
