"""`ReplayedDecision`: recorded scaling decisions from a file or a MambaDeployment, computed again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mamba_cli.errors import InvalidInput
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.scaling_record import RecordInvalid, ScalingRecord, from_json, from_text

MAX_FILE_BYTES = 64 << 20
"""Size in bytes of the largest file that is read."""


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A recorded decision beside the one that the same inputs give now."""

    where: str
    """Time of the decision, or its line in the file."""
    recorded: ScalingRecord
    again: ScalingDecision

    @property
    def same(self) -> bool:
        """Whether the two decisions are equal byte for byte."""
        return msgspec.json.encode(self.recorded.decision) == msgspec.json.encode(self.again)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--output json` prints."""
        record = {name: msgspec.to_builtins(getattr(self.recorded, name)) for name in
                 ("config", "observation", "decision")}  # fmt: skip
        return {"where": self.where, "same": self.same, **record, "again": msgspec.to_builtins(self.again)}


def replayed_file(path: Path) -> list[ReplayedDecision]:
    """Compute again all decisions of a file, with one record per line or MambaDeployments as YAML.

    Raises `InvalidInput` when the file or a record in it cannot be read.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInput(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    if text.lstrip().startswith('{"config"'):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [_replay(f"line {number}", str(path), from_json, line) for number, line in lines]
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise InvalidInput(
            f"{path}: holds neither recorded decisions, one per line, nor YAML: {error}"
        ) from error
    objects = [manifest for document in documents for manifest in _objects(document)]
    return [replay for manifest in objects for replay in replayed_object(manifest, str(path))]


def replayed_object(manifest: dict[str, Any], source: str) -> list[ReplayedDecision]:
    """Compute again the decisions in `status.scaling.history`, and in the history of each pool.

    Raises `InvalidInput` for a broken record.
    """
    status = manifest.get("status")
    if not isinstance(status, dict):
        return []
    parts = {"": status}
    parts |= {f"{pool.get('name')} ": pool for pool in status.get("pools") or () if isinstance(pool, dict)}
    return [replay for label, part in parts.items() for replay in _replayed_history(label, part, source)]


def _replayed_history(label: str, part: dict[str, Any], source: str) -> list[ReplayedDecision]:
    scaling = part.get("scaling")
    history = scaling.get("history") if isinstance(scaling, dict) else None
    entries = [entry for entry in history or () if isinstance(entry, dict) and entry.get("record")]
    return [
        _replay(f"{label}{entry.get('time')}", source, from_text, str(entry["record"])) for entry in entries
    ]


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
        yield from (item for item in items if isinstance(item, dict))
    else:
        yield document
