"""Safetensors files of a model directory: checked, memory-mapped, handed out tensor by tensor.

Used once, while the model is built. Every complaint names the file and the tensor. A tensor that needs no
conversion stays in the file's mapping, so that weights are in memory once and shared between processes,
unless the CPU kernels take them, which pack what they multiply. Small ones are copied: they lie among large
ones, and reading a few bytes of a mapping brings its whole neighbourhood into memory.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.fp8 import dequantized
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.source import Progress, silent
from mamba_server.model.checkpoint.weight_files import (
    FP8,
    INDEX,
    SCALES,
    is_multimodal,
    scale_endings,
    shards,
    text_name,
)

PREFIXES = ("model.", "backbone.")
"""The same model is saved under either name, depending on the version that wrote it."""
STORED = ("F32", "BF16", "F16", "F64")
"""Types of tensors whose elements are weights as they stand; those of other types have scales beside them."""
SMALL = 32 << 10
"""Bytes of a tensor up to which it is copied out of the file: a norm, a bias, a convolution."""


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor as its file's header describes it."""

    file: Path
    name: str
    dtype: str
    """As safetensors spell it."""
    shape: tuple[int, ...]
    nbytes: int


class Weights:
    """The tensors of a directory under prefix-free names (`layers.0.mixer.A_log`, `lm_head.weight`)."""

    def __init__(self, directory: Path, progress: Progress = silent) -> None:
        """Read and check all headers. Raises WeightsError for absent, damaged or truncated files."""
        self._entries: dict[str, WeightEntry] = {}
        self._files: dict[Path, Any] = {}
        self._taken: set[str] = set()
        self._progress = progress
        promised = shards(directory)
        headers = {path: _header(path) for path in promised}
        multimodal = is_multimodal(entry.name for entries in headers.values() for entry in entries)
        for path, entries in headers.items():
            for entry in entries:
                # Of a multimodal checkpoint the text model is served; its other parts are passed over.
                name = text_name(entry.name) if multimodal else entry.name
                if name is None:
                    continue
                short = _short(name)
                if (twin := self._entries.get(short)) is not None:
                    raise WeightsError(f"{path}: tensor {entry.name} is also in {twin.file}")
                self._entries[short] = entry
            if missing := sorted(promised[path] - {entry.name for entry in entries}):
                raise WeightsError(f"{path}: tensor {missing[0]} is not in it, but {INDEX} says so")
        if not self._entries:
            raise WeightsError(f"{directory}: there is no tensor in its *.safetensors files")
        self.nbytes = sum(entry.nbytes for entry in self._entries.values())
        self._done = 0

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """The tensor `name` of exactly `shape`, converted; one that is stored as FP8 with its scale. Raises
        WeightsError naming file and tensor."""
        entry = self._entries.get(name)
        if entry is None:
            files = sorted({str(entry.file) for entry in self._entries.values()})
            raise WeightsError(f"{files[0]}: tensor {name} is missing (looked in {len(files)} files)")
        scale = None
        if entry.dtype == FP8:
            scale = next((name + ending for ending in SCALES if name + ending in self._entries), None)
        if entry.dtype not in STORED and scale is None:
            raise WeightsError(
                f"{entry.file}: tensor {entry.name} is stored as {entry.dtype}: this version loads weights "
                f"that are stored as {', '.join(STORED)}, or as {FP8} with a scale beside them"
            )
        if entry.shape != shape:
            raise WeightsError(
                f"{entry.file}: tensor {entry.name} has shape {list(entry.shape)}, the configuration says "
                f"{list(shape)}"
            )
        tensor = self._read(name, entry)
        if scale is None:
            taken = tensor.to(device=device, dtype=dtype, copy=tensor.nbytes <= SMALL)
        else:
            try:
                taken = dequantized(tensor, self._read(scale, self._entries[scale]), dtype).to(device)
            except ValueError as error:
                raise WeightsError(f"{entry.file}: tensor {entry.name} has {error}") from error
        if taken is not tensor:
            give_back(tensor)
        return taken

    def _read(self, name: str, entry: WeightEntry) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._open(entry.file).get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{entry.file}: tensor {entry.name} cannot be read: {error}") from error
        self._taken.add(name)
        self._done += entry.nbytes
        self._progress("weights", self._done, self.nbytes)
        return tensor

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raise WeightsError if a tensor is left that nobody took: the model is not what the config says.

        unused: what names begin with that nobody has to take.
        """
        scales = scale_endings(entry.dtype for entry in self._entries.values())
        for name, entry in self._entries.items():
            if name not in self._taken and not name.startswith(unused) and not name.endswith(scales):
                raise WeightsError(
                    f"{entry.file}: tensor {entry.name} is unexpected: the configuration has no place for it"
                )
        self._files.clear()

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            _warm(path)
            self._files[path] = safe_open(path, framework="pt", device="cpu").__enter__()
        return self._files[path]


def _short(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _header(path: Path) -> list[WeightEntry]:
    """Tensors of one file; the header is compared with the file's length before anything is mapped."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise WeightsError(f"{path}: truncated or not a safetensors file ({size} bytes)")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    try:
        header = json.loads(text)
        entries = [
            (WeightEntry(path, name, item["dtype"], tuple(item["shape"]), end - begin), end)
            for name, item in header.items()
            if name != "__metadata__"
            for begin, end in [item["data_offsets"]]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path}: damaged header: {error!r}") from error
    for entry, end in sorted(entries, key=lambda pair: pair[1]):
        if 8 + length + end > size:
            raise WeightsError(
                f"{path}: truncated: tensor {entry.name} should end at byte {8 + length + end}, the file has "
                f"{size}; fetch it again"
            )
    return [entry for entry, _ in entries]


def _warm(path: Path) -> None:
    """Ask the kernel to read the file ahead, so that mapped weights do not fault in one page at a time."""
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
