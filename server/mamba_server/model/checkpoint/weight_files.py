"""Files that hold the weights of a model directory, and the sizes that their headers state. Torch-free.

The planner reads the sizes before anything is loaded; `weights` checks and loads the tensors.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from mamba_planner.arithmetic import WeightsSize
from mamba_planner.families.quantization import Held, Quantization, quantization_of
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.quantized.stored_names import (
    OF_ACTIVATIONS,
    Entry,
    find,
    shapes_of,
    size_of,
)

INDEX = "model.safetensors.index.json"
FP8 = "F8_E4M3"
"""Type of FP8 tensors in safetensors files; each has a scale in another tensor."""
SCALES = ("_scale", "_scale_inv")
"""Suffixes of the names of scales. The name of a weight's scale begins with the weight's name; scales of
activations are not used."""
TEXT_PARTS = ("model.language_model.", "language_model.")
"""Prefixes of the text model's tensors in a multimodal checkpoint."""
PICTURE_PARTS = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.")
"""Prefixes, after "model." or nothing, of the tensors of models of pictures. Beside these, the tensors of the
text model may have the names that they have in a checkpoint of text alone."""
_BODY = (
    "layers.", "embed_tokens.", "embeddings.", "embedding_norm.", "norm.", "norm_f.", "final_layernorm.",
)  # fmt: skip
"""Prefixes of the tensors of a text model after "model." or nothing."""
DRAFT_HEADS = "mtp."
"""Prefix of the tensors of heads that predict several tokens, which are loaded only to draft with."""
_HEAD = "lm_head."
_OF_VOCABULARY = ("lm_head.weight", "embed_tokens.weight", "embeddings.weight")
_LARGEST_HEADER = 100 << 20


def weights_size(directory: Path, *, heads: bool = False) -> WeightsSize | None:
    """Return the size of the weights in `directory`, or None without `*.safetensors`. Raises WeightsError.

    `heads`: whether heads for drafts count.
    """
    if not any(directory.glob("*.safetensors")):
        return None
    headers = {path: _tensors(path) for path in shards(directory)}
    multimodal = is_multimodal(name for tensors in headers.values() for name in tensors)
    entries: dict[str, Entry] = {}
    stored = sum(
        _read_entries(path, tensors, entries, multimodal=multimodal, heads=heads)
        for path, tensors in headers.items()
    )
    try:
        return _size(stored, entries, directory)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise WeightsError(
            f"{directory}: its tensors of quantized weights do not belong together: {error!r}"
        ) from error


def quantization_in(directory: Path) -> Quantization | None:
    """Return the description of quantized weights in the configuration of a model; None = there is none."""
    try:
        return quantization_of(json.loads((directory / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _size(stored: int, entries: dict[str, Entry], directory: Path) -> WeightsSize:
    """Return the size of a model with these tensors, of which quantized matrices have several."""
    matrices = find(entries)
    quantization = quantization_in(directory) if matrices else None
    held: Counter[Held] = Counter()
    packed = packed_bytes = rows = 0
    for name, matrix in matrices.items():
        module = name.removesuffix(".weight").removeprefix("model.").removeprefix("backbone.")
        size = size_of(matrix, module, entries, quantization)
        held[size.form.held] += size.elements
        rows += size.rows
        if size.packed_bytes:
            packed, packed_bytes = packed + size.elements, packed_bytes + size.packed_bytes
    others = shapes_of(matrices.values()).union(*(matrix.tensors.values() for matrix in matrices.values()))
    scales = scale_endings(kind for kind, _ in entries.values())
    plain = [
        shape for name, (_, shape) in entries.items() if name not in others and not name.endswith(scales)
    ]
    return WeightsSize(
        stored,
        sum(map(prod, plain)) + held.total(),
        sum(prod(shape) for shape in plain if _of_matrices(shape)) + held.total(),
        held["int8"],
        held["int4"],
        held["int4_zeros"],
        packed,
        packed_bytes,
        sum(prod(shape[:-1]) for shape in plain if _of_matrices(shape)) + rows,
        *_stored_fp8(entries),
    )


def _stored_fp8(entries: dict[str, Entry]) -> tuple[int, int]:
    """Return the elements of FP8 matrices and the scales that they have in memory, one for each output.

    Those of the vocabulary are left out, which engines hold in another type.
    """
    elements = scales = 0
    for name, (kind, shape) in entries.items():
        if kind != FP8 or name.endswith(_OF_VOCABULARY) or len(shape) < 2:
            continue
        scale = next((entries[name + end][1] for end in SCALES if name + end in entries), None)
        if scale is None:
            # The scales of NVFP4 are FP8 themselves.
            continue
        groups = scale[-1] if len(scale) == len(shape) and 1 < scale[-1] < shape[-1] else 1
        elements += prod(shape)
        scales += prod(shape[:-1]) * groups
    return elements, scales


def is_multimodal(names: Iterable[str]) -> bool:
    """Return whether these tensors belong to a text model and other models, such as one of pictures."""
    return any(
        name.startswith(TEXT_PARTS) or name.removeprefix("model.").startswith(PICTURE_PARTS) for name in names
    )


def has_draft_heads(directory: Path) -> bool:
    """Return whether the files have tensors of a head for drafts. Raises WeightsError."""
    return any(name.startswith(DRAFT_HEADS) for path in shards(directory) for name in _tensors(path))


def text_name(name: str, *, heads: bool = False) -> str | None:
    """Return the text model's name of a multimodal checkpoint's tensor; None = another model's tensor.

    `heads`: whether heads for drafts belong to the text model.
    """
    for part in TEXT_PARTS:
        if name.startswith(part):
            return name.removeprefix(part)
    alone = name.startswith((_HEAD, DRAFT_HEADS) if heads else _HEAD)
    return name if alone or name.removeprefix("model.").startswith(_BODY) else None


def other_parts(names: Iterable[str], *, heads: bool = False) -> list[str]:
    """Return the prefixes of a multimodal checkpoint's tensors that are not the text model's."""
    others = (name.removeprefix("model.") for name in names if text_name(name, heads=heads) is None)
    return sorted({name.partition(".")[0] for name in others})


def scale_endings(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return the suffixes of tensors that are scales; none unless a tensor has the type FP8."""
    return SCALES if FP8 in dtypes else ()


def shards(directory: Path) -> dict[Path, set[str]]:
    """Return the files to load, with the names that the index lists for each (empty without an index).

    Files that the index does not list are ignored: some models are published in two splittings at once.
    Raises WeightsError.
    """
    index = directory / INDEX
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{directory}: the directory has no *.safetensors files")
        return {path: set() for path in files}
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names_by_file: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            names_by_file.setdefault(directory / file, set()).add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index}: the file is not an index of safetensors files: {error!r}") from error
    for path, names in names_by_file.items():
        if not path.is_file():
            raise WeightsError(
                f"{path}: the file is missing; by the index it holds {min(names)} and other tensors; "
                "download the model again"
            )
    if not names_by_file:
        raise WeightsError(f"{index}: the file is not an index of safetensors files: it names none")
    return names_by_file


def _tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file as its header describes them. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_LARGEST_HEADER, path.stat().st_size - 8):
                raise WeightsError(f"{path}: the file is truncated, or not a safetensors file")
            header = json.loads(file.read(length))
        return {name: tensor for name, tensor in header.items() if name != "__metadata__"}
    except OSError as error:
        raise WeightsError(f"{path}: the file cannot be read: {error}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: the header of the file is damaged: {error!r}") from error


def _read_entries(
    path: Path, tensors: dict[str, Any], entries: dict[str, Entry], *, multimodal: bool, heads: bool
) -> int:
    """Add a file's tensors that are weights, or parts of quantized ones, to `entries`; return their bytes.

    Raises WeightsError.
    """
    stored = 0
    try:
        scales = scale_endings(tensor["dtype"] for tensor in tensors.values())
        for name, tensor in tensors.items():
            text = text_name(name, heads=heads) if multimodal else name
            unused = not heads and name.startswith(DRAFT_HEADS)
            if text is None or unused or name.endswith(OF_ACTIVATIONS):
                continue
            begin, end = tensor["data_offsets"]
            if not 0 <= begin <= end:
                raise ValueError(f"{name} reaches from byte {begin} to byte {end}")
            stored += 0 if name.endswith(scales) else end - begin
            entries[text] = tensor["dtype"], tuple(map(int, tensor["shape"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: the header of the file is damaged: {error!r}") from error
    return stored


def _of_matrices(shape: Sequence[int]) -> bool:
    """Return whether this is the shape of a matrix, or of one matrix for each expert.

    Weights of convolutions have three dimensions, too, of which the second is 1.
    """
    return len(shape) == 2 or (len(shape) == 3 and shape[1] > 1)
