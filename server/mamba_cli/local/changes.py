"""What an edit of the file means for what is running: which part is live, which needs a new start. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_api.v1alpha1 import MambaDeployment

_LIVE = ("spec.stateCache.strategy", "spec.stateCache.trackInterval")


@dataclass(frozen=True, slots=True)
class Change:
    """One object's difference."""

    name: str
    live: tuple[str, ...]
    """Fields the running engine can take over."""
    later: tuple[str, ...]
    """Fields that take a new start."""


def changes_of(old: list[MambaDeployment], new: list[MambaDeployment]) -> list[Change]:
    """Differences by object, in the order of `old`; objects that came or went count as `later`."""
    after = {each.name: each for each in new}
    before = {each.name: each for each in old}
    found = []
    for name, deployment in before.items():
        if name not in after:
            found.append(Change(name, (), ("the object was removed",)))
            continue
        fields = _different(deployment.manifest(), after[name].manifest(), "")
        live = tuple(field for field in fields if field in _LIVE)
        later = tuple(field for field in fields if field not in _LIVE)
        if live or later:
            found.append(Change(name, live, later))
    found += [Change(name, (), ("the object was added",)) for name in after if name not in before]
    return found


def _different(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    fields: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        here = f"{path}.{key}" if path else key
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            fields += _different(left, right, here)
        elif left != right:
            fields.append(here)
    return fields
