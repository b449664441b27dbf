"""What `mambaserve plan` may be pointed at: YAML in a file or on standard input, a model's directory, its
config.json, or its URI."""

import json
import os.path
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mamba_cli.errors import InvalidInput
from mamba_cli.local.documents import read_deployments
from mamba_cli.local.planning import (
    PlanFlags,
    PlanOutcome,
    plan_config,
    plan_deployment,
    plan_directory,
    plan_uri,
)

_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(?<!\.yaml)(?<!\.yml)(?<!\.json)", re.ASCII)


def plan_source(source: str, flags: PlanFlags) -> list[PlanOutcome]:
    """One outcome an object. Raises `InvalidInput`, `RunFailed`."""
    # Not Path.is_dir, which raises for a path that the system cannot look at.
    if "://" in source:
        return [plan_uri(source, flags)]
    path = Path(source)
    if os.path.isdir(source):
        return [plan_directory(path, flags)]
    if (config := _model_config(path)) is not None:
        # The weights beside it count, too.
        beside = path.name == "config.json" and any(path.parent.glob("*.safetensors"))
        return [plan_directory(path.parent, flags) if beside else plan_config(path, config, flags)]
    if _ON_HUB.fullmatch(source) and not os.path.exists(source):
        raise InvalidInput(
            f"{source}: no such file; for the model of that name on the Hub write hf://{source}"
        )
    return [plan_deployment(each, flags) for each in read_deployments([path], flags.profiles)]


def _model_config(path: Path) -> Mapping[str, Any] | None:
    """The document, if it is a model's configuration: JSON that is no Kubernetes object."""
    if path.suffix != ".json":
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "kind" not in document else None
