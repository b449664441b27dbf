"""Which files hold the weights of a model directory, and how large they are by their headers. Torch-free.

The planner asks before anything is loaded; checking and loading tensors is `weights`' task.
"""

import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from mamba_planner.arithmetic import WeightsSize
from mamba_server.model.checkpoint.errors import WeightsError

INDEX = "model.safetensors.index.json"
FP8 = "F8_E4M3"
"""Type of a tensor, as safetensors spell it, whose elements are weights with the scale beside it."""
SCALES = ("_scale", "_scale_inv")
"""What the names of scales end with. A weight's begins with its name; those of activations are not used."""
TEXT_PARTS = ("model.language_model.", "language_model.")
"""What the names of the text model's tensors begin with in a multimodal checkpoint."""
_HEAD = "lm_head."
_LARGEST_HEADER = 100 << 20


def weights_size(directory: Path) -> WeightsSize | None:
    """Size of what would be loaded from `directory`; None without `*.safetensors`. Raises `WeightsError`."""
    if not any(directory.glob("*.safetensors")):
        return None
    headers = {path: _tensors(path) for path in shards(directory)}
    multimodal = is_multimodal(name for tensors in headers.values() for name in tensors)
    sizes = [_file_size(path, tensors, multimodal) for path, tensors in headers.items()]
    return WeightsSize(
        sum(each.bytes for each in sizes),
        sum(each.elements for each in sizes),
        sum(each.of_matrices for each in sizes),
    )


def is_multimodal(names: Iterable[str]) -> bool:
    """Return whether tensors of these names are those of a text model beside others, as for pictures."""
    return any(name.startswith(TEXT_PARTS) for name in names)


def text_name(name: str) -> str | None:
    """Return what the text model alone calls a tensor of a multimodal checkpoint; None = another part's."""
    for part in TEXT_PARTS:
        if name.startswith(part):
            return name.removeprefix(part)
    return name if name.startswith(_HEAD) else None


def scale_endings(dtypes: Iterable[str]) -> tuple[str, ...]:
    """What names end with of tensors that are no weights, by the types of all: without FP8 there are none."""
    return SCALES if FP8 in dtypes else ()


def shards(directory: Path) -> dict[Path, set[str]]:
    """The files to load, with the tensors the index promises in each (empty without an index).

    Files beside those of the index are left alone: some models are published in two splittings at once.
    Raises `WeightsError`.
    """
    index = directory / INDEX
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{directory}: there are no *.safetensors files")
        return {path: set() for path in files}
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            found.setdefault(directory / file, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index}: not an index of safetensors files: {error!r}") from error
    for path, names in found.items():
        if not path.is_file():
            raise WeightsError(f"{path}: shard is missing (it should hold {min(names)} and others)")
    if not found:
        raise WeightsError(f"{index}: not an index of safetensors files: it names none")
    return found


def _tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file as its header describes them. Raises `WeightsError`."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_LARGEST_HEADER, path.stat().st_size - 8):
                raise WeightsError(f"{path}: truncated or not a safetensors file")
            header = json.loads(file.read(length))
        return {name: tensor for name, tensor in header.items() if name != "__metadata__"}
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: its header is damaged: {error!r}") from error


def _file_size(path: Path, tensors: dict[str, Any], multimodal: bool) -> WeightsSize:
    stored = elements = of_matrices = 0
    try:
        scales = scale_endings(tensor["dtype"] for tensor in tensors.values())
        for name, tensor in tensors.items():
            if not name.endswith(scales) and not (multimodal and text_name(name) is None):
                begin, end = tensor["data_offsets"]
                if not 0 <= begin <= end:
                    raise ValueError(f"{name} lies from byte {begin} to {end}")
                stored += end - begin
                elements += prod(tensor["shape"])
                of_matrices += prod(tensor["shape"]) if _of_matrices(tensor["shape"]) else 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: its header is damaged: {error!r}") from error
    return WeightsSize(stored, elements, of_matrices)


def _of_matrices(shape: list[int]) -> bool:
    """Whether it is one, or one of each expert. The second dimension of a convolution's three is 1."""
    return len(shape) == 2 or (len(shape) == 3 and shape[1] > 1)
