"""The file with the models of one gateway: its document, and the settings of each model.

A broken file is refused at the start. Later it changes nothing: the gateway logs what is wrong, and goes on
with the models that it has.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mamba_gateway.settings import GatewaySettings
from mamba_settings.models_document import ModelEntry, ModelsDocument

OF_ONE_MODEL = frozenset(
    (
        "backend", "deployment", "namespace", "backend_key_file", "redis_url", "redis_url_file",
        "prefix_index_scope", "requests_per_minute", "tokens_per_minute", "concurrent_requests", "key_limit",
        "max_in_flight", "max_queue", "queue_timeout", "hold_timeout", "request_timeout", "max_attempts",
        "idle_timeout", "silence_timeout", "connect_timeout", "prefix_weight", "load_weight",
        "hand_over_tokens", "probe_interval", "probe_timeout",
    )
)  # fmt: skip
"""Settings that an entry of the document may have; all others are of the whole gateway."""
_ONE_OF_EACH = (("redis_url", "redis_url_file"), ("backend", "deployment"))


class ModelsFileError(ValueError):
    """The file cannot be read or used; the message names the file and the entry."""


class ModelsFile:
    """Reads the file that names the models of one gateway, and notices its changes."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._text: bytes | None = None

    def read(self) -> ModelsDocument:
        """Return the document. Raises ModelsFileError."""
        try:
            self._text = self._path.read_bytes()
        except OSError as error:
            raise ModelsFileError(f"--models-file: {self._path}: {error.strerror}") from error
        return self._parsed(self._text)

    def changed(self) -> ModelsDocument | None:
        """Return the document if the file has changed since the last read. Raises ModelsFileError, once.

        The result is None if the file is unchanged or cannot be read, as while it is being replaced.
        """
        try:
            text = self._path.read_bytes()
        except OSError:
            return None  # the file is being replaced; while it is gone, the models stay
        if text == self._text:
            return None
        self._text = text
        return self._parsed(text)

    def _parsed(self, text: bytes) -> ModelsDocument:
        try:
            return ModelsDocument.model_validate_json(text)
        except ValidationError as error:
            raise ModelsFileError(f"--models-file: {self._path}: {explained(error)}") from None


def model_settings(base: GatewaySettings, entry: ModelEntry) -> GatewaySettings:
    """Return the settings of one model: `base`, the settings of the gateway, with the changes of `entry`.

    Raises ModelsFileError for settings that no single model can have.
    """
    if strange := sorted(entry.settings.keys() - OF_ONE_MODEL):
        raise ModelsFileError(
            f"--models-file: {entry.name}: settings.{strange[0]} is no setting of a single model; these are: "
            + ", ".join(sorted(OF_ONE_MODEL))
        )
    values: dict[str, Any] = base.model_dump(
        exclude={
            "models_file",
            "prefix_index_scope",
            "served_model_name",
            "adapter_name",
            "adapter_names_file",
        }
    )
    for alternatives in _ONE_OF_EACH:
        if any(name in entry.settings for name in alternatives):
            values = {name: value for name, value in values.items() if name not in alternatives}
            values |= dict.fromkeys(alternatives)
    values["backend"] = ()
    values |= {"models_file": None, "served_model_name": entry.engine_name, "prefix_index_scope": None}
    try:
        return GatewaySettings(**{**values, **entry.settings})
    except ValidationError as error:
        raise ModelsFileError(f"--models-file: {entry.name}: {explained(error)}") from None


def explained(error: ValidationError) -> str:
    """Return the complaints of a validation in one line, each with the place in the document."""
    complaints = []
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        complaints.append(f"{place}: {message}" if place else message)
    return "; ".join(complaints)
