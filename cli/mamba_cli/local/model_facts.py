"""What the planner must know of a model: its configuration and, when files are at hand, their bytes.

Reads small files only; of a model on the Hub its config.json and weight index, never the weights.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mamba_api.choices import Quantization
from mamba_api.model_uri import ModelUri, parse_model_uri
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_planner.arithmetic import DTYPE_BYTES, WeightsSize
from mamba_planner.families import ModelConfigError, load_model_config, model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.model.checkpoint.source import resolve
from mamba_server.model.checkpoint.weight_files import weights_size

HUB_INDEX = "model.safetensors.index.json"


class UnreadableHub(Exception):
    """The Hub gave no config.json. The caller, who knows it, adds the way around."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`size` None: no weights at hand, so their bytes follow from the parameter count."""

    config: ModelConfig
    size: WeightsSize | None

    def weights_bytes(self, dtype: str | None, quantization: Quantization = "none") -> int | None:
        """Bytes once loaded as `dtype` (None = the configuration's); None = by parameter count."""
        return None if self.size is None else self.size.loaded(dtype or self.config.dtype, quantization)


def facts_of_directory(directory: Path) -> ModelFacts:
    """Raises `InvalidInput` naming the file and the field."""
    try:
        return ModelFacts(load_model_config(directory), weights_size(directory))
    except (ModelConfigError, ModelError) as error:
        raise InvalidInput(str(error)) from error


def facts_of_config(config: Mapping[str, Any], where: str) -> ModelFacts:
    """Facts of a config.json alone; `where` names it. Raises `InvalidInput`."""
    try:
        return ModelFacts(model_config_from_hf(config, where), None)
    except ModelConfigError as error:
        raise InvalidInput(str(error)) from error


def facts_of_model(uri: str, inline: Mapping[str, Any] | None, where: Path) -> ModelFacts:
    """Facts of `spec.model`; `where` is the file it stands in. Raises `InvalidInput`, `RunFailed`."""
    if inline:
        return facts_of_config(inline, f"{where}: spec.model.config")
    try:
        return facts_of_uri(uri, where)
    except UnreadableHub as error:
        raise RunFailed(f"{error}; or give spec.model.config in the file") from error
    except ModelError as error:
        hint = "; give spec.model.config to plan without the files" if uri.startswith("pvc:") else ""
        raise InvalidInput(f"{where}: spec.model.uri: {error}{hint}") from error


def facts_of_uri(uri: str, where: Path) -> ModelFacts:
    """Facts of the model at a URI; a relative file:// starts at the file `where`.

    Raises `InvalidModelUri`, `ModelError`, `InvalidInput`, `RunFailed`, and `UnreadableHub` if the Hub cannot
    be read.
    """
    parsed = parse_model_uri(uri)
    if parsed.scheme == "hf":
        return _facts_of_hub(parsed, uri)
    return facts_of_directory(resolve(local_uri(uri, where)))


def local_uri(uri: str, where: Path) -> str:
    """The URI as this machine reads it: `file://./x` and `file://../x` start at the file `where`."""
    parsed = parse_model_uri(uri)
    if parsed.scheme == "file" and parsed.path.startswith((".", "..")):
        return str((where.resolve().parent / unquote(parsed.path)).resolve())
    return uri


def _facts_of_hub(uri: ModelUri, text: str) -> ModelFacts:
    config_file, index = _hub_files(uri, text)
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        total = int(json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]) if index else 0
        if not isinstance(config, dict):
            raise TypeError("config.json must hold a JSON object")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFailed(f"{text}: what the Hub sent cannot be read: {error!r}") from error
    size = None
    try:
        model = model_config_from_hf(config, f"{text}: config.json")
    except ModelConfigError as error:
        raise InvalidInput(str(error)) from error
    if total:
        # An index does not tell shapes; all but a hundredth of a model is matrices.
        elements = total // DTYPE_BYTES[model.dtype]
        size = WeightsSize(total, elements, elements)
    return ModelFacts(model, size)


def _hub_files(uri: ModelUri, text: str) -> tuple[Path, Path | None]:
    """config.json of a Hub model and its weight index, from the local cache when they are there. Without the
    index is done, whatever keeps it away. Raises `RunFailed`."""
    try:
        import logging

        from huggingface_hub import (
            get_hf_file_metadata,
            hf_hub_download,
            hf_hub_url,
            try_to_load_from_cache,
        )
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError as error:
        raise UnreadableHub(
            f"{text}: the Hub is read with huggingface-hub: pip install 'mambaserve[server]'"
        ) from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def cached(name: str) -> Path | None:
        found = try_to_load_from_cache(uri.name, name, revision=uri.revision)
        return Path(found) if isinstance(found, str) else None

    def fetched(name: str) -> Path:
        return Path(hf_hub_download(uri.name, name, revision=uri.revision))

    def missing(error: Exception) -> bool:
        # The local kind means that the Hub was not reached, and is one of the others by inheritance.
        return isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)

    config, index = cached("config.json"), cached(HUB_INDEX)
    indexed = index is None
    if indexed:
        # Asked first, since a download tries for half a minute, in silence, where nobody answers. Not of
        # config.json, of which the download asks the same once more.
        try:
            get_hf_file_metadata(hf_hub_url(uri.name, HUB_INDEX, revision=uri.revision))
        except Exception as error:  # the Hub's client lets errors of several HTTP libraries through
            if config is None and not missing(error):
                raise _unread(text, error) from error
            indexed = False
    try:
        config = config or fetched("config.json")
    except Exception as error:
        if missing(error):
            raise RunFailed(f"{text}: the Hub has no config.json there") from error
        raise _unread(text, error) from error
    if indexed:
        with contextlib.suppress(Exception):
            index = fetched(HUB_INDEX)
    return config, index


def _unread(text: str, error: Exception) -> UnreadableHub:
    return UnreadableHub(
        f"{text}: could not fetch config.json from the Hub ({type(error).__name__}): check the name and the "
        "network"
    )
