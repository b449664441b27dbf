"""The models in the model cache, as `mambaserve list` and `pull` show them. Torch-free.

It reads directories, configurations and the headers of weights, and changes nothing. The cache has the layout
of the Hub's client: models--NAME/snapshots/COMMIT.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mamba_planner.families import ModelConfigError, load_model_config, read_config
from mamba_planner.families.registry import why_not_served
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.weight_files import quantization_in, weights_size
from mamba_server.model.remote.model_copy import PARTIAL, SNAPSHOTS
from mamba_server.model.remote.use_record import last_use

State = Literal["complete", "incomplete", "no weights"]
_PREFIX = "models--"
_DISK_BLOCK = 512
"""Bytes of a block in which a file system counts a file's room, whatever its own blocks are."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One copy in the cache: a model at one commit."""

    uri: str
    """URI by which it was last used; without a record, as far as the folder's name tells it."""
    commit: str
    directory: str
    """Directory of its files, which `serve` takes, too."""
    size: int
    """Bytes on the disk; files that two commits share count for both."""
    family: str
    """Family of the model; of a model that is not served, the type that its configuration names."""
    precision: str
    """Type of the weights, or the way in which they are quantized; empty = not known."""
    is_served: bool
    """Whether this version serves such a model."""
    state: State
    """incomplete: a download broke off, which the next one continues; no weights: only a plan read it."""
    used: float | None
    """Time of the last use by mambaserve, in seconds since 1970; None = none is recorded."""


def cached_models(cache: Path) -> list[CachedModel]:
    """Return the models in a cache (HF_HUB_CACHE), the one that was used last first."""
    models = [model for folder in sorted(cache.glob(f"{_PREFIX}*")) for model in _models_in(folder)]
    return sorted(models, key=lambda model: -(model.used or 0))


def cached_model(copy: Path) -> CachedModel:
    """Return the model of one copy, models--NAME/snapshots/COMMIT."""
    folder, use = copy.parent.parent, last_use(copy)
    family, precision, is_served = _kind(copy)
    return CachedModel(
        uri=use.uri if use else _uri_of(folder.name),
        commit=copy.name,
        directory=str(copy),
        size=_size(copy) or _size(folder / PARTIAL / copy.name) or _size(folder / "blobs"),
        family=family,
        precision=precision,
        is_served=is_served,
        state=_state(copy),
        used=use.seconds if use else None,
    )


def _models_in(folder: Path) -> Iterator[CachedModel]:
    """Yield the copies of one model, and the parts of other copies whose download was interrupted."""
    commits = {path.name for path in folder.glob(f"{SNAPSHOTS}/*") if path.is_dir()}
    commits |= {path.name for path in folder.glob(f"{PARTIAL}/*") if path.is_dir() and "." not in path.name}
    if not commits and any(folder.glob("blobs/*")):
        commits = {
            path.read_text(encoding="utf-8").strip() for path in folder.glob("refs/*") if path.is_file()
        }
    for commit in sorted(commits):
        yield cached_model(folder / SNAPSHOTS / commit)


def _uri_of(folder: str) -> str:
    """Return the URI of a model on the Hub; of another source the readable part of the folder's name."""
    name = folder.removeprefix(_PREFIX)
    readable, _, digest = name.rpartition("--")
    is_of_hub = not (len(digest) == 12 and readable.partition("-")[0] in ("s3", "gs", "oci", "http", "https"))
    return f"hf://{name.replace('--', '/', 1)}" if is_of_hub else readable


def _kind(copy: Path) -> tuple[str, str, bool]:
    """Return family, precision and whether such a model is served."""
    try:
        config = load_model_config(copy)
        quantization = quantization_in(copy)
        is_served = why_not_served(config) is None
        if config.stored is not None:
            return config.family, config.stored.summary, is_served
        is_fp8 = quantization is not None and quantization.is_fp8
        return config.family, "fp8" if is_fp8 else config.dtype, is_served
    except ModelConfigError:
        pass
    try:
        return str(read_config(copy).get("model_type") or ""), "", False
    except ModelConfigError:
        return "", "", False


def _state(copy: Path) -> State:
    try:
        if weights_size(copy) is not None:
            return "complete"
    except WeightsError:
        return "incomplete"
    unfinished = any((copy.parent.parent / "blobs").glob("*.incomplete"))
    return "no weights" if (copy / "config.json").is_file() and not unfinished else "incomplete"


def _size(directory: Path) -> int:
    """Return the bytes on the disk of the files below a directory, links followed."""
    total = 0
    for path in directory.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue  # a link to a file that is gone, or a file that another process has just renamed
        if path.is_file():
            # A file of which pieces are missing has holes.
            total += min(status.st_size, status.st_blocks * _DISK_BLOCK)
    return total
