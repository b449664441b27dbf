"""Safetensors files of a model directory: checked, memory-mapped, handed out tensor by tensor.

Used once, while the model is built. Every error names the file and the tensor. A tensor that needs no
conversion stays in the file's mapping, so that weights are in memory once and shared between processes; the
CPU kernels, however, pack the matrices that they multiply. Small tensors are copied: they lie between large
ones, and reading a few bytes of a mapping brings the bytes around them into memory.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from mamba_kernels.cpu.quantized.block_numbers import BlockNumbers
from mamba_kernels.four_bit import FourBitMatrix
from mamba_kernels.fp8 import Fp8Matrix
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.fp8 import dequantize, is_of_blocks, kept
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.quantized.stored_matrix import (
    Numbers,
    Read,
    blocks,
    four_bits,
    plain,
    read_matrix,
)
from mamba_server.model.checkpoint.quantized.stored_names import (
    OF_ACTIVATIONS,
    OF_CACHES,
    StoredMatrix,
    find,
    shapes_of,
)
from mamba_server.model.checkpoint.source import Progress, silent
from mamba_server.model.checkpoint.tensor_source import Fp8Form
from mamba_server.model.checkpoint.weight_files import (
    DRAFT_HEADS,
    FP8,
    INDEX,
    SCALES,
    is_multimodal,
    other_parts,
    quantization_in,
    scale_endings,
    shards,
    text_name,
)

log = logging.getLogger(__name__)
CPU = torch.device("cpu")
Result = TypeVar("Result")
PREFIXES = ("model.", "backbone.")
"""Prefixes of all names of a checkpoint, which depend on the version of transformers that wrote it."""
STORED = ("F32", "BF16", "F16", "F64")
"""Types of tensors that need no scale."""
COMPUTED = (".rotary_emb.inv_freq",)
"""Endings of tensors that follow from the configuration, which older programs stored as well."""
MAX_COPIED_BYTES = 32 << 10
"""Size up to which tensors are copied out of the mapping: norms, biases, convolutions."""


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor as its file's header describes it."""

    file: Path
    name: str
    dtype: str
    """Type of the elements, as named in safetensors files."""
    shape: tuple[int, ...]
    nbytes: int


class Weights:
    """The tensors of a directory under names without a prefix (`layers.0.mixer.A_log`, `lm_head.weight`)."""

    def __init__(self, directory: Path, progress: Progress = silent, *, heads: bool = False) -> None:
        """Read and check all headers. Raises WeightsError for missing, damaged or truncated files.

        `heads`: whether heads for drafts are loaded, too; from a multimodal checkpoint, only then.
        """
        self._entries = _entries(directory, heads=heads)
        self._files: dict[Path, Any] = {}
        self._names_read: set[str] = set()
        self._progress = progress
        self.nbytes = sum(
            entry.nbytes for name, entry in self._entries.items() if heads or not name.startswith(DRAFT_HEADS)
        )
        self._bytes_read = 0
        self._matrices = find({name: (each.dtype, each.shape) for name, each in self._entries.items()})
        quantization = quantization_in(directory) if self._matrices else None
        self._zero_offset = 1 if quantization is None else quantization.zero_offset
        self._why: dict[str, str] = {}
        """Reason why no kernel computes with a matrix as it is stored, by name, until the matrix is taken."""
        self._widened: dict[str, list[int]] = {}
        """Numbers of elements of matrices that became ordinary weights, by how they are stored and why."""

    def has(self, name: str) -> bool:
        """Return whether the files hold the tensor `name`."""
        return name in self._entries or name in self._matrices

    def rows(self, name: str) -> int:
        """Return the first dimension of the tensor `name`; 0 = the files do not hold it."""
        if (matrix := self._matrices.get(name)) is not None:
            return matrix.rows
        entry = self._entries.get(name)
        return entry.shape[0] if entry is not None and entry.shape else 0

    def numbers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> BlockNumbers | None:
        """Return the quantized matrix `name` as integers that the C++ kernels multiply by.

        The result is None, and `take` has to be called, if the matrix is not quantized or the kernels cannot
        use its form. Raises WeightsError, whose message names file and tensor.
        """
        if (matrix := self._matrices.get(name)) is None or matrix.layout == "nvfp4" or len(shape) != 2:
            return None
        numbers = blocks(self._stored(name, matrix, shape), dtype)
        if isinstance(numbers, str):
            self._why[name] = numbers
            return None
        return numbers

    def four_bits(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> FourBitMatrix | None:
        """Return the quantized matrix `name` as codes of four bits on the device.

        The result is None, and `take` has to be called, if the matrix is not quantized, or its form is none
        that a GPU multiplies by. Raises WeightsError, whose message names file and tensor.
        """
        if (matrix := self._matrices.get(name)) is None:
            return None
        codes = self._checked(
            name, matrix, lambda read: four_bits(matrix, shape, read, self._zero_offset, dtype), device
        )
        if isinstance(codes, str):
            self._why[name] = codes
            return None
        return codes

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return the tensor `name` of exactly `shape`, converted; an FP8 tensor is multiplied by its scale.

        Raises WeightsError, whose message names file and tensor.
        """
        if (matrix := self._matrices.get(name)) is not None:
            why = self._why.pop(name, "")
            reason = f"{matrix.layout}, since {why}" if why else matrix.layout
            self._widened.setdefault(reason, []).append(prod(shape))
            return plain(self._stored(name, matrix, shape, device), dtype).view(shape)
        entry = self._entries.get(name)
        if entry is None:
            files = sorted({str(entry.file) for entry in self._entries.values()})
            raise WeightsError(f"{files[0]}: tensor {name} is missing (looked in {len(files)} files)")
        scale = self._scale_of(name)
        if entry.dtype not in STORED and scale is None:
            raise WeightsError(
                f"{entry.file}: tensor {entry.name} is stored as {entry.dtype}: this version loads weights "
                f"that are stored as {', '.join(STORED)}, or as {FP8} with a scale"
            )
        _check_shape(entry, shape)
        tensor = self._read(name, entry)
        if scale is None:
            converted = tensor.to(device=device, dtype=dtype, copy=tensor.nbytes <= MAX_COPIED_BYTES)
        else:
            try:
                converted = dequantize(tensor, self._read(scale, self._entries[scale]), dtype).to(device)
            except ValueError as error:
                raise WeightsError(f"{entry.file}: tensor {entry.name} has {error}") from error
        if converted is not tensor:
            give_back(tensor)
        return converted

    @property
    def fp8_form(self) -> Fp8Form:
        """How the files store FP8 matrices."""
        form: Fp8Form = ""
        for name, entry in self._entries.items():
            if (scale := self._scale_of(name)) is not None:
                form = "rows"
                if is_of_blocks(entry.shape, self._entries[scale].shape):
                    return "blocks"
        return form

    def fp8(self, name: str, shape: tuple[int, ...]) -> Fp8Matrix | None:
        """Return the matrix `name` of exactly `shape` as the FP8 that is stored; None = `take` it.

        Raises WeightsError, whose message names file and tensor.
        """
        if (scale := self._scale_of(name)) is None:
            return None
        entry = self._entries[name]
        _check_shape(entry, shape)
        try:
            return kept(self._read(name, entry), self._read(scale, self._entries[scale]))
        except ValueError as error:
            raise WeightsError(f"{entry.file}: tensor {entry.name} has {error}") from error

    def _scale_of(self, name: str) -> str | None:
        """Return the name of the scale of an FP8 tensor; None = it has none, or is not FP8."""
        entry = self._entries.get(name)
        if entry is None or entry.dtype != FP8:
            return None
        return next((name + ending for ending in SCALES if name + ending in self._entries), None)

    def _stored(
        self, name: str, matrix: StoredMatrix, shape: tuple[int, ...], device: torch.device = CPU
    ) -> Numbers:
        return self._checked(
            name, matrix, lambda read: read_matrix(matrix, shape, read, self._zero_offset), device
        )

    def _checked(
        self, name: str, matrix: StoredMatrix, convert: Callable[[Read], Result], device: torch.device
    ) -> Result:
        """Return the result of `convert` for a matrix's tensors, which are read onto the device.

        Raises WeightsError for the errors of `convert`.
        """

        def read(part: str) -> torch.Tensor:
            if part not in self._entries:
                raise WeightsError(f"{file}: tensor {part} is missing, which belongs to {name}")
            return self._read(part, self._entries[part]).to(device)

        file = next(self._entries[part].file for part in matrix.tensors.values() if part in self._entries)
        try:
            return convert(read)
        except ValueError as error:
            raise WeightsError(f"{file}: {name} is stored as {matrix.layout}, with {error}") from error

    def _read(self, name: str, entry: WeightEntry) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._open(entry.file).get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{entry.file}: tensor {entry.name} cannot be read: {error}") from error
        self._names_read.add(name)
        self._bytes_read += entry.nbytes
        self._progress("weights", self._bytes_read, self.nbytes)
        return tensor

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raise WeightsError if a tensor was not taken: the configuration describes another model.

        `unused` are prefixes of tensors that need not be taken.
        """
        scales = scale_endings(entry.dtype for entry in self._entries.values())
        # Weights of a checkpoint may be ordinary beside a quantized cache.
        scales += COMPUTED + (OF_ACTIVATIONS if self._matrices else OF_CACHES)
        shapes = shapes_of(self._matrices.values())
        for name, entry in self._entries.items():
            if name in self._names_read or name.startswith(unused) or name.endswith(scales) or name in shapes:
                continue
            if self._is_empty_bias(name, entry):
                continue
            raise WeightsError(
                f"{entry.file}: tensor {entry.name} is unexpected: the configuration has no place for it"
            )
        self._report_widened()
        if scale := next((name for name in self._entries if name.endswith(OF_CACHES)), None):
            # An engine writes nothing below a warning.
            log.warning(
                "%s and the like are not used: with --kv-cache-dtype fp8_e4m3 each key and value of a token "
                "has a scale of its own",
                scale,
            )
        self._files.clear()

    def _is_empty_bias(self, name: str, entry: WeightEntry) -> bool:
        """Return whether the tensor is a bias of zeros, which GPTQ writes beside every quantized matrix."""
        module, _, last = name.rpartition(".")
        quantized = last == "bias" and f"{module}.weight" in self._matrices
        return quantized and not bool(self._read(name, entry).any())

    def _report_widened(self) -> None:
        for reason, elements in self._widened.items():
            # An engine writes nothing below a warning.
            log.warning(
                "%d matrices of %.3g billion weights are stored as %s and held as ordinary numbers",
                len(elements),
                sum(elements) / 1e9,
                reason,
            )

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            _warm(path)
            self._files[path] = safe_open(path, framework="pt", device="cpu").__enter__()
        return self._files[path]


def _check_shape(entry: WeightEntry, shape: tuple[int, ...]) -> None:
    """Raise WeightsError unless the tensor has exactly `shape`."""
    if entry.shape != shape:
        raise WeightsError(
            f"{entry.file}: tensor {entry.name} has the shape {list(entry.shape)}, and by the "
            f"configuration it should have {list(shape)}"
        )


def _entries(directory: Path, *, heads: bool) -> dict[str, WeightEntry]:
    """Return the tensors of a directory's model by their short names. Raises WeightsError."""
    by_name: dict[str, WeightEntry] = {}
    indexed = shards(directory)
    headers = {path: _header(path) for path in indexed}
    names = [entry.name for entries in headers.values() for entry in entries]
    multimodal = is_multimodal(names)
    if multimodal and (parts := other_parts(names, heads=heads)):
        # An engine writes nothing below a warning.
        log.warning("only the text model of the checkpoint is loaded, without %s", ", ".join(parts))
    for path, entries in headers.items():
        for entry in entries:
            # Of a multimodal checkpoint only the text model is served.
            name = text_name(entry.name, heads=heads) if multimodal else entry.name
            if name is None:
                continue
            short = short_name(name)
            if (twin := by_name.get(short)) is not None:
                raise WeightsError(
                    f"{path}: tensor {entry.name} is also in {twin.file}; remove one of the files"
                )
            by_name[short] = entry
        if missing := sorted(indexed[path] - {entry.name for entry in entries}):
            raise WeightsError(
                f"{path}: tensor {missing[0]} is not in the file, although {INDEX} lists it; download "
                "the model again"
            )
    if not by_name:
        raise WeightsError(f"{directory}: its *.safetensors files contain no tensor")
    return by_name


def short_name(name: str) -> str:
    """Return the name of a tensor or a module without the prefix of its checkpoint."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _header(path: Path) -> list[WeightEntry]:
    """Return the tensors of one file, after comparing its header with its length. Raises WeightsError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise WeightsError(
                    f"{path}: the file is truncated, or not a safetensors file ({size} bytes); download it "
                    "again"
                )
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: the file cannot be read: {error}") from error
    try:
        header = json.loads(text)
        entries = [
            (WeightEntry(path, name, item["dtype"], tuple(item["shape"]), end - begin), end)
            for name, item in header.items()
            if name != "__metadata__"
            for begin, end in [item["data_offsets"]]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: the header of the file is damaged: {error!r}") from error
    for entry, end in sorted(entries, key=lambda pair: pair[1]):
        if 8 + length + end > size:
            raise WeightsError(
                f"{path}: the file is truncated: tensor {entry.name} should end at byte {8 + length + end}, "
                f"and the file has {size}; download it again"
            )
    return [entry for entry, _ in entries]


def _warm(path: Path) -> None:
    """Ask the kernel to read the file ahead, so that mapped weights are not read one page at a time."""
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
