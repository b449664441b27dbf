"""`ModelFacts`: the configuration of a model and, where its files are present, the size of its weights.

Used by the planner's commands. Only small files are read: for a model on the Hub config.json and the weight
index, never the weights.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mamba_api.choices import Quantization
from mamba_api.model_uri import REMOTE, ModelUri, parse_model_uri
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.extras import install
from mamba_planner.arithmetic import DTYPE_BYTES, WeightsSize
from mamba_planner.families import ModelConfigError, load_model_config, model_config_from_hf
from mamba_planner.families.quantization import quantization_of
from mamba_planner.model_config import DraftModel, ModelConfig
from mamba_server.model.checkpoint.errors import DownloadFailed, ModelError
from mamba_server.model.checkpoint.source import facts_of_remote, resolve
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_settings.engine_settings import EngineSettings

HUB_INDEX = "model.safetensors.index.json"


class UnreadableHub(Exception):
    """The Hub sent no config.json. The caller adds an alternative to the message."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that the planner needs about one model.

    `size` is None if no files tell it; it then follows from the parameter count.
    """

    config: ModelConfig
    size: WeightsSize | None

    def weights_bytes(
        self, dtype: str | None, quantization: Quantization = "none", *, on_cpu: bool = False
    ) -> int | None:
        """Return the bytes of the weights loaded as `dtype` (None = the configuration's); None = unknown."""
        if self.size is None:
            return None
        return self.size.loaded(self.config, dtype or self.config.dtype, quantization, on_cpu=on_cpu)

    def with_draft_model(
        self, uri: str, draft: "ModelFacts", settings: EngineSettings, *, on_cpu: bool
    ) -> "ModelFacts":
        """Return the facts of this model with a draft model, as an engine with `settings` loads both."""
        dtype = None if settings.dtype == "auto" else settings.dtype
        size = draft.weights_bytes(dtype, settings.quantization, on_cpu=on_cpu)
        return replace(self, config=replace(self.config, draft_model=DraftModel(uri, draft.config, size)))


def facts_of_directory(directory: Path) -> ModelFacts:
    """Read the facts of a model directory. Raises `InvalidInput` that names the file and the field."""
    try:
        return ModelFacts(load_model_config(directory), weights_size(directory))
    except (ModelConfigError, ModelError) as error:
        raise InvalidInput(str(error)) from error


def facts_of_config(config: Mapping[str, Any], where: str) -> ModelFacts:
    """Return the facts of a config.json alone; `where` names it in errors. Raises `InvalidInput`."""
    try:
        return ModelFacts(model_config_from_hf(config, where), None)
    except ModelConfigError as error:
        raise InvalidInput(str(error)) from error


def facts_of_model(uri: str, inline: Mapping[str, Any] | None, where: Path) -> ModelFacts:
    """Return the facts of `spec.model` in the file `where`. Raises `InvalidInput`, `RunFailed`."""
    if inline:
        return facts_of_config(inline, f"{where}: spec.model.config")
    try:
        return facts_of_uri(uri, where)
    except UnreadableHub as error:
        raise RunFailed(f"{error}; or give spec.model.config in the file") from error
    except ModelError as error:
        hint = "; give spec.model.config to plan without the files" if uri.startswith("pvc:") else ""
        raise InvalidInput(f"{where}: spec.model.uri: {error}{hint}") from error


def facts_of_draft_model(uri: str, where: Path) -> ModelFacts:
    """Return the facts of the draft model that the file `where` names. Raises `InvalidInput`, `RunFailed`."""
    try:
        return facts_of_uri(uri, where)
    except UnreadableHub as error:
        raise RunFailed(str(error)) from error
    except ModelError as error:
        raise InvalidInput(f"{where}: spec.engine.speculation: {error}") from error


def facts_of_uri(uri: str, where: Path) -> ModelFacts:
    """Return the facts of the model at a URI; a relative file:// URI refers to the folder of `where`.

    Raises `InvalidModelUri`, `ModelError`, `InvalidInput`, `RunFailed`, and `UnreadableHub` if the Hub cannot
    be read.
    """
    parsed = parse_model_uri(uri)
    if parsed.scheme == "hf":
        return _facts_of_hub(parsed, uri)
    if parsed.scheme in REMOTE:
        return _facts_of_remote(uri)
    return facts_of_directory(resolve(local_uri(uri, where)))


def local_uri(uri: str, where: Path) -> str:
    """Return the URI with `file://./x` and `file://../x` resolved from the folder of the file `where`."""
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
        raise RunFailed(f"{text}: the Hub sent files that cannot be read: {error!r}") from error
    try:
        model = model_config_from_hf(config, f"{text}: config.json")
    except ModelConfigError as error:
        raise InvalidInput(str(error)) from error
    return ModelFacts(model, _size_of_files(total, model, config))


def _facts_of_remote(text: str) -> ModelFacts:
    """Return the facts of a model in a bucket, a registry or on a web server. Raises as `facts_of_uri`."""
    try:
        facts = facts_of_remote(text)
    except DownloadFailed as error:
        raise RunFailed(str(error)) from error
    try:
        model = model_config_from_hf(facts.config, f"{text}: config.json")
    except ModelConfigError as error:
        raise InvalidInput(str(error)) from error
    return ModelFacts(model, _size_of_files(facts.weights_bytes, model, facts.config))


def _size_of_files(total: int, model: ModelConfig, config: Mapping[str, Any]) -> WeightsSize | None:
    """Return the size of weights of which only the bytes of the files are known; None = they are not."""
    if not total or quantization_of(config) is not None:
        return None
    # Neither an index nor a listing has shapes, and neither tells the elements of quantized weights. About
    # 99 % of a model's elements are in matrices.
    elements = total // DTYPE_BYTES[model.dtype]
    return WeightsSize(total, elements, elements)


def _hub_files(uri: ModelUri, text: str) -> tuple[Path, Path | None]:
    """Return config.json and the weight index of a Hub model, from the local cache where they are there.

    The index is None where it cannot be had for any reason. Raises `RunFailed`, `UnreadableHub`.
    """
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
        raise UnreadableHub(f"{text}: reading the Hub needs huggingface-hub: {install('server')}") from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def cached(name: str) -> Path | None:
        path = try_to_load_from_cache(uri.name, name, revision=uri.revision)
        return Path(path) if isinstance(path, str) else None

    def fetched(name: str) -> Path:
        return Path(hf_hub_download(uri.name, name, revision=uri.revision))

    def missing(error: Exception) -> bool:
        # `LocalEntryNotFoundError`, a subclass, means that the Hub was not reached.
        return isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)

    config, index = cached("config.json"), cached(HUB_INDEX)
    indexed = index is None
    if indexed:
        # This request comes first, because a download retries in silence for half a minute where nothing
        # answers. It asks for the index, since the download of config.json makes the same request again.
        try:
            get_hf_file_metadata(hf_hub_url(uri.name, HUB_INDEX, revision=uri.revision))
        except Exception as error:  # the Hub's client passes on errors of several HTTP libraries
            if config is None and not missing(error):
                raise _unreachable(text, error) from error
            indexed = False
    try:
        config = config or fetched("config.json")
    except Exception as error:
        if missing(error):
            raise RunFailed(f"{text}: the Hub has no config.json there") from error
        raise _unreachable(text, error) from error
    if indexed:
        with contextlib.suppress(Exception):
            index = fetched(HUB_INDEX)
    return config, index


def _unreachable(text: str, error: Exception) -> UnreadableHub:
    return UnreadableHub(
        f"{text}: could not fetch config.json from the Hub ({type(error).__name__}): check the name and the "
        "network"
    )
