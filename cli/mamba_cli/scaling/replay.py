"""Recorded decisions: from a file of them, from a MambaDeployment in a file, or from one in a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mamba_cli.errors import InvalidInput
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.scaling_record import RecordInvalid, ScalingRecord, from_json, from_text

LARGEST = 64 << 20
"""Bytes of a file."""


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """One decision, and the same made again."""

    where: str
    """Time, or place in the file."""
    recorded: ScalingRecord
    again: ScalingDecision

    @property
    def same(self) -> bool:
        """Byte for byte."""
        return msgspec.json.encode(self.recorded.decision) == msgspec.json.encode(self.again)

    def to_json(self) -> dict[str, Any]:
        """The object that `--output json` prints."""
        found = {name: msgspec.to_builtins(getattr(self.recorded, name)) for name in
                 ("config", "observation", "decision")}  # fmt: skip
        return {"where": self.where, "same": self.same, **found, "again": msgspec.to_builtins(self.again)}


def replayed_file(path: Path) -> list[ReplayedDecision]:
    """All of a file: one record a line, or MambaDeployments as `kubectl get -o yaml` prints them.

    Raises `InvalidInput` when there is no record in it that can be read.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InvalidInput(f"{path}: more than {LARGEST >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    if text.lstrip().startswith('{"config"'):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [_replay(f"line {number}", str(path), from_json, line) for number, line in lines]
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path}: neither recorded decisions, one a line, nor YAML: {error}") from error
    objects = [one for document in documents for one in _objects(document)]
    return [replay for one in objects for replay in replayed_object(one, str(path))]


def replayed_object(manifest: dict[str, Any], source: str) -> list[ReplayedDecision]:
    """What stands in `status.scaling.history`. Raises `InvalidInput` when that is no recorded decision."""
    status = manifest.get("status")
    scaling = status.get("scaling") if isinstance(status, dict) else None
    history = scaling.get("history") if isinstance(scaling, dict) else None
    changes = [one for one in history or () if isinstance(one, dict) and one.get("record")]
    return [_replay(str(one.get("time")), source, from_text, str(one["record"])) for one in changes]


def _replay(where: str, source: str, read: Any, text: str) -> ReplayedDecision:
    try:
        record: ScalingRecord = read(text)
    except RecordInvalid as error:
        raise InvalidInput(f"{source}, {where}: {error}") from error
    return ReplayedDecision(where, record, record.replayed())


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if isinstance(items, list):
        yield from (one for one in items if isinstance(one, dict))
    else:
        yield document
