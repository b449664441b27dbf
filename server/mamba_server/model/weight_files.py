"""How large the weights of a model directory are, from file headers alone. Torch-free.

The planner asks before anything is loaded; checking and loading tensors is `weights`' task.
"""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mamba_server.model.errors import WeightsError

_LARGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class WeightsSize:
    """Bytes as stored, and the number of elements they are."""

    bytes: int
    elements: int


def weights_size(directory: Path) -> WeightsSize | None:
    """Size of all `*.safetensors` in `directory`; None when there are none. Raises `WeightsError`."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return None
    sizes = [_file_size(path) for path in files]
    return WeightsSize(sum(each.bytes for each in sizes), sum(each.elements for each in sizes))


def _file_size(path: Path) -> WeightsSize:
    stored = elements = 0
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_LARGEST_HEADER, path.stat().st_size - 8):
                raise WeightsError(f"{path}: truncated or not a safetensors file")
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                stored += end - begin
                elements += prod(tensor["shape"])
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: its header is damaged: {error!r}") from error
    return WeightsSize(stored, elements)
