"""`plan_source`: plans the argument of `mambaserve plan`.

The argument is YAML in a file or on standard input, a model's directory, its config.json, its URI, or the
name of a published model.
"""

import json
import os.path
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from mamba_cli.errors import InvalidInput
from mamba_cli.local.documents import read_deployments
from mamba_cli.local.planning import (
    PlanFlags,
    PlanOutcome,
    plan_config,
    plan_directory,
    plan_pools,
    plan_uri,
)
from mamba_cli.model_argument import model_uri

KNOWN = "known://"
"""Scheme of models whose published config.json ships with the planner, so that no network is needed."""


def plan_source(source: str, flags: PlanFlags) -> list[PlanOutcome]:
    """Return one outcome for each object in `source`, or for each of its pools.

    Raises `InvalidInput`, `RunFailed`.
    """
    # `os.path` functions are used, because those of `Path` raise for a path that the system refuses.
    if source in published_names() and not os.path.exists(source):
        source = f"{KNOWN}{source}"
    if source.startswith(KNOWN):
        file = published_config(source.removeprefix(KNOWN))
        config = json.loads(file.read_text(encoding="utf-8"))
        return [replace(plan_config(file, config, flags), source=source)]
    source = model_uri(source)
    if "://" in source:
        return [plan_uri(source, flags)]
    path = Path(source)
    if os.path.isdir(source):
        return [plan_directory(path, flags)]
    if (config := _model_config(path)) is not None:
        # Weights in the same folder give their exact size.
        has_weights = path.name == "config.json" and any(path.parent.glob("*.safetensors"))
        return [plan_directory(path.parent, flags) if has_weights else plan_config(path, config, flags)]
    documents = read_deployments([path], flags.profiles)
    return [pool.outcome for loaded in documents for pool in plan_pools(loaded, flags)]


def published_config(name: str) -> Path:
    """Return the file with the published configuration of a model. Raises `InvalidInput` with all names."""
    names = published_names()
    if name not in names:
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {KNOWN}{close[0]}? " if close else ""
        raise InvalidInput(f"{KNOWN}{name}: no such model; {hint}there are: {', '.join(names)}")
    return _published() / f"{name}.json"


def published_names() -> list[str]:
    """Return the names of the models whose published configurations ship with the planner."""
    return sorted(file.stem for file in _published().glob("*.json"))


def _published() -> Path:
    return Path(str(files("mamba_planner") / "published"))


def _model_config(path: Path) -> Mapping[str, Any] | None:
    """Return the document if it is a model's configuration: a JSON object that is no Kubernetes object.

    The result is None for any other file, also for one that cannot be read.
    """
    if path.suffix != ".json":
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "kind" not in document else None
