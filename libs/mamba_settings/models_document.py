"""`ModelsDocument`: the models that one gateway serves at one address, and which keys may use which of them.

The operator and `mambaserve up` write the document as JSON, and so do users of `mambaserve gateway
--models-file`. The gateway reads it at its start and whenever the file changes. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mamba_api.names import API_KEY_NAME

EVERY_MODEL = "*"
"""Entry of a key's list that stands for all models, those that are added later included."""
MAX_MODELS = 64
"""Maximum number of models at one address, which also bounds the label values of the gateway's metrics."""
MAX_ADAPTERS = 512
"""Maximum number of adapters of these models."""
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelEntry(_Part):
    """Says under which names one model is served at the address, and where its engines are."""

    name: Name
    """Name that requests use and `/v1/models` lists."""
    served_name: Name | None = None
    """Name under which the engines serve the model; default: `name`."""
    aliases: tuple[Name, ...] = Field((), max_length=32)
    """Other names of the model."""
    parent: Name | None = None
    """Name of the model whose engines serve this one, which is then a LoRA adapter of it; default: the model
    has engines of its own."""
    fallbacks: tuple[Name, ...] = Field((), max_length=8)
    """Names of the models that take requests while no engine of this one is ready, in this order."""
    settings: dict[str, Any] = {}
    """Settings of `mambaserve gateway` that hold for this model alone: its engines (`deployment` or
    `backend`), its limits and its weights."""

    @property
    def engine_name(self) -> str:
        """Name under which the engines serve the model."""
        return self.served_name or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Name and aliases of the model."""
        return (self.name, *self.aliases)


class KeyAccess(_Part):
    """Says which models one API key may use."""

    key: Annotated[str, Field(pattern=f"^{API_KEY_NAME.pattern}$")]
    """Name of the key: the second word of its line in the file of keys."""
    models: tuple[Name, ...] = Field((), max_length=MAX_MODELS)
    """Names of the models; `*` stands for all. A model includes its adapters, and an adapter nothing else."""


class ModelsDocument(_Part):
    """Says which models are served at one address, and which API keys may use which."""

    models: tuple[ModelEntry, ...] = Field((), max_length=MAX_MODELS + MAX_ADAPTERS)
    """The models and their adapters. With none, the gateway answers and lists no model."""
    default: Name | None = None
    """Name of the model that serves requests which name no model, or one that is none of the models; without
    it such requests are refused where there are several models."""
    access: tuple[KeyAccess, ...] | None = Field(None, max_length=4096)
    """Models of each key. If absent, every key may use every model; otherwise a key that is missing here may
    use none."""

    @model_validator(mode="after")
    def _names_are_clear(self) -> Self:
        if clash := duplicates(name for entry in self.models for name in entry.names):
            raise ValueError(f"{clash[0]!r} names two models: each name and alias belongs to one model")
        names = {entry.name for entry in self.models}
        _check_adapters(self.models)
        for entry in self.models:
            for fallback in entry.fallbacks:
                if fallback not in names:
                    raise ValueError(f"{entry.name}: the fallback {fallback!r} is no name of a model here")
                if fallback == entry.name:
                    raise ValueError(f"{entry.name}: a model is no fallback of its own")
        if self.default is not None and self.default not in names:
            raise ValueError(f"the default {self.default!r} is no name of a model here")
        if clash := duplicates(access.key for access in self.access or ()):
            raise ValueError(f"access: the key {clash[0]!r} has two entries: write one")
        return self

    def json_text(self) -> str:
        """Return the document as the text of a file."""
        return self.model_dump_json(indent=2, exclude_defaults=True) + "\n"


def _check_adapters(models: Sequence[ModelEntry]) -> None:
    """Check the adapters among `models`, and the number of models without adapters.

    Raises ValueError for an adapter of no model, for an adapter with settings, and for too many models.
    """
    parents = {entry.name for entry in models if entry.parent is None}
    if len(parents) > MAX_MODELS:
        raise ValueError(f"{len(parents)} models have engines of their own: at most {MAX_MODELS} may")
    for entry in models:
        if entry.parent is not None and entry.parent not in parents:
            raise ValueError(
                f"{entry.name}: the parent {entry.parent!r} is no name of a model with engines of its own"
            )
        if entry.parent is not None and entry.settings:
            raise ValueError(
                f"{entry.name}: an adapter has no settings of its own: remove them, or give them to "
                f"{entry.parent!r}"
            )


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)
