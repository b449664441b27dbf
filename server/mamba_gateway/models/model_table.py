"""`ModelTable`: which model a request means, and whether its API key may use that model.

A key that may use only some models learns nothing of the others: every name that is not one of its own is
refused with the same error, whether a model has that name or not. Pure; the set of models asks it for each
request.
"""

from collections.abc import Sequence

from mamba_edge.errors import InvalidRequest, ModelNotFound
from mamba_gateway.errors import ModelForbidden
from mamba_gateway.routing.decision import no_such_model
from mamba_settings.models_document import EVERY_MODEL, ModelEntry, ModelsDocument

FORBIDDEN = "this API key may not use that model: GET /v1/models lists the models of this key"


class ModelTable:
    """Tells which model of one document a name means, and which models an API key may use."""

    def __init__(self, document: ModelsDocument) -> None:
        self._default = document.default
        self._entries = {entry.name: entry for entry in document.models}
        self._by_name = {name: entry for entry in document.models for name in entry.names}
        self._access = (
            None
            if document.access is None
            else {access.key: frozenset(access.models) for access in document.access}
        )

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """Return all models."""
        return tuple(self._entries.values())

    def has(self, name: str) -> bool:
        """Return whether `name` is the name of a model or adapter; an alias does not count."""
        return name in self._entries

    def adapters_of(self, entry: ModelEntry) -> tuple[str, ...]:
        """Return the names by which the engines of a model know its adapters, as the document lists them."""
        return tuple(one.engine_name for one in self._entries.values() if one.parent == entry.name)

    @property
    def public(self) -> bool:
        """Return whether every key may use every model, since the document restricts none."""
        return self._access is None

    def sees_all(self, key: str) -> bool:
        """Return whether the key may use every model."""
        return self._access is None or EVERY_MODEL in self._access.get(key, ())

    def may_use(self, key: str, entry: ModelEntry) -> bool:
        """Return whether the key may use the model."""
        # Whoever may use a model may use its adapters; a right to an adapter is one to that alone.
        rights = self._access.get(key, frozenset()) if self._access is not None else frozenset()
        return self.sees_all(key) or entry.name in rights or entry.parent in rights

    def visible(self, key: str) -> tuple[ModelEntry, ...]:
        """Return the models that the key may use."""
        return tuple(entry for entry in self._entries.values() if self.may_use(key, entry))

    def named(self, name: str, key: str) -> ModelEntry:
        """Return the model with this name or alias, if `key` may use it.

        Raises ModelForbidden, ModelNotFound.
        """
        entry = self._by_name.get(name)
        if entry is not None and self.may_use(key, entry):
            return entry
        if not self.sees_all(key):
            raise ModelForbidden(FORBIDDEN, param="model")
        raise ModelNotFound(no_such_model(name, tuple(self._entries)), param="model")

    def requested(self, name: str | None, key: str) -> ModelEntry:
        """Return the model that a request with `name` in its body means.

        Raises ModelForbidden, ModelNotFound, and InvalidRequest for a request that names none of several.
        """
        if name is None:
            return self._unnamed(key)
        # The default of a key with few rights must not tell it which names exist.
        if self._default is not None and name not in self._by_name and self.sees_all(key):
            return self._entries[self._default]
        return self.named(name, key)

    def fallbacks(self, entry: ModelEntry, key: str) -> Sequence[ModelEntry]:
        """Return the models that may stand in for `entry`, as far as the key may use them."""
        chain = (self._entries[name] for name in entry.fallbacks)
        return [fallback for fallback in chain if self.may_use(key, fallback)]

    def _unnamed(self, key: str) -> ModelEntry:
        visible = self.visible(key)
        default = next((entry for entry in visible if entry.name == self._default), None)
        if default is not None:
            return default
        names = {entry.name for entry in visible}
        own = [entry for entry in visible if entry.parent not in names]
        if len(own) == 1:
            return own[0]
        if own:
            listed = ", ".join(f"'{entry.name}'" for entry in own[:8])
            raise InvalidRequest(
                f"model: is required, because several models are served here: {listed}",
                param="model",
                code="missing_required_parameter",
            )
        if not self.sees_all(key):
            raise ModelForbidden(FORBIDDEN, param="model")
        raise ModelNotFound(no_such_model(None), param="model")
