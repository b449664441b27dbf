"""`resolve`: which model of a gateway has which name, and the file of models that says so. Pure.

Names are given out in a fixed order, so that the same objects always lead to the same names: the aliases of
the spec, then the served names, the older MambaDeployment first, then the names of the objects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from mamba_api.v1alpha1.gateway_status import ServedModel
from mamba_api.v1alpha1.mamba_gateway import EVERY_MODEL, MambaGatewaySpec
from mamba_operator.shared_gateway.candidates import Candidate
from mamba_settings.models_document import MAX_ADAPTERS, MAX_MODELS, KeyAccess, ModelEntry, ModelsDocument


@dataclass(frozen=True, slots=True)
class Resolution:
    """The names of the models at one address, and the names that could not be given."""

    document: ModelsDocument
    served: tuple[Candidate, ...]
    """Candidates that have a name."""
    models: tuple[ServedModel, ...]
    conflicts: tuple[str, ...]
    """Sentences about names that two models claim."""
    unknown: tuple[str, ...]
    """Places of the spec with a name that is no model's, such as `default: small`."""
    closed: tuple[str, ...]
    """MambaDeployments whose own gateways require API keys, which this gateway does not."""
    left_out: tuple[str, ...]
    """MambaDeployments beyond the number that one address serves."""


@dataclass(slots=True)
class _Names:
    """Gives names to models, each name once, and collects sentences about conflicts."""

    aliases: Mapping[str, str]
    """Model to which the spec gives each alias, by alias."""
    holders: dict[str, str] = field(default_factory=dict)
    """MambaDeployment of each model, by the model's name."""
    conflicts: list[str] = field(default_factory=list)

    def give(self, candidate: Candidate) -> bool:
        """Give a candidate its served name, and return whether that name was free."""
        name, deployment = candidate.served_name, candidate.deployment
        if (model := self.aliases.get(name)) is not None:
            self.conflicts.append(
                f"{name!r} is an alias of {model!r} in the spec, and the served name of {deployment}: the "
                f"alias has it, and {deployment} is reached by the name of its object"
            )
        elif (holder := self.holders.get(name)) is not None:
            self.conflicts.append(
                f"{name!r} is the served name of {holder} and of {deployment}: {holder} has it, because it "
                f"is older, and {deployment} is reached by the name of its object"
            )
        else:
            self.holders[name] = deployment
            return True
        return False

    def give_object_name(self, candidate: Candidate) -> bool:
        """Give a candidate the name of its object, and return whether that name was free."""
        name = candidate.deployment
        if name in self.aliases or name in self.holders:
            return False
        self.holders[name] = name
        return True

    def give_adapters(self, candidate: Candidate) -> Iterator[str]:
        """Give a candidate the names of its adapters that are free, and yield these names."""
        for name in candidate.adapters:
            if name in self.aliases or name in self.holders:
                holder = "an alias in the spec" if name in self.aliases else f"a name of {self.holders[name]}"
                self.conflicts.append(
                    f"{name!r} is an adapter of {candidate.deployment}, and {holder}, which requests with "
                    "that name reach: give the adapter another name"
                )
            else:
                self.holders[name] = candidate.deployment
                yield name


def resolve(spec: MambaGatewaySpec, candidates: Sequence[Candidate]) -> Resolution:
    """Return the names of the candidates, which are sorted by age."""
    closed = [one.deployment for one in candidates if one.requires_keys and spec.auth is None]
    usable, conflicts = _usable(one for one in candidates if one.deployment not in closed)
    first, left_out = usable[:MAX_MODELS], usable[MAX_MODELS:]
    aliases, repeated = _aliases(spec, conflicts)
    registry = _Names(aliases, conflicts=conflicts)
    names = _model_names(first, registry)
    served = tuple(one for one in first if one.deployment in names)
    # The name of an object is a second name of its model, which the spec may use, too.
    further = {names[one.deployment]: [one.deployment] for one in served if registry.give_object_name(one)}
    models = {name: names[holder] for name, holder in registry.holders.items()}
    adapters = _adapters(served, names, registry)
    lookup = _Lookup({**models, **{name: name for name in adapters}})
    for group in spec.aliases:
        if (model := lookup.model("aliases", group.model)) is not None:
            own = further.setdefault(model, [])
            own += [name for name in group.names if name not in repeated.get(group.model, ())]
    document = ModelsDocument(
        models=_entries(served, names, adapters, further, _fallbacks_of_all(spec, lookup)),
        default=lookup.model("default", spec.default) if spec.default is not None else None,
        access=_access(spec, lookup),
    )
    return Resolution(
        document,
        served,
        _models(document, {names[one.deployment]: one for one in served}),
        tuple(conflicts),
        tuple(dict.fromkeys(lookup.unknown)),
        tuple(closed),
        tuple(one.deployment for one in left_out),
    )


def _model_names(candidates: Sequence[Candidate], registry: _Names) -> dict[str, str]:
    """Return the name of each model by its MambaDeployment, and note conflicts in the registry."""
    names = {one.deployment: one.served_name for one in candidates if registry.give(one)}
    for one in candidates:
        if one.deployment in names:
            continue
        if registry.give_object_name(one):
            names[one.deployment] = one.deployment
        else:
            sentence = (
                f"no request reaches {one.deployment}, because the name of its object is taken, too: give it "
                "another spec.model.servedName"
            )
            registry.conflicts.append(sentence)
    return names


def _entries(
    served: Iterable[Candidate],
    names: Mapping[str, str],
    adapters: Mapping[str, str],
    further: Mapping[str, Sequence[str]],
    fallbacks: Mapping[str, Sequence[str]],
) -> tuple[ModelEntry, ...]:
    """Return the entries of the file of models, sorted by name.

    Args:
        served: the candidates.
        names: name of the model by MambaDeployment.
        adapters: name of the model by adapter.
        further: further names by name of the model or adapter.
        fallbacks: names of the fallbacks by name of the model.
    """
    entries = (
        ModelEntry(
            name=(name := names[one.deployment]),
            served_name=one.served_name if one.served_name != name else None,
            aliases=tuple(further.get(name, ())),
            fallbacks=tuple(fallbacks.get(name, ())),
            settings=dict(one.settings),
        )
        for one in served
    )
    of_adapters = (
        ModelEntry(
            name=name,
            parent=parent,
            aliases=tuple(further.get(name, ())),
            fallbacks=tuple(fallbacks.get(name, ())),
        )
        for name, parent in adapters.items()
    )
    return tuple(sorted((*entries, *of_adapters), key=lambda entry: entry.name))


def _adapters(served: Iterable[Candidate], names: Mapping[str, str], registry: _Names) -> dict[str, str]:
    """Return the model of each adapter by the adapter's name, and note conflicts of names in `registry`."""
    adapters = {name: names[one.deployment] for one in served for name in registry.give_adapters(one)}
    beyond = [*adapters][MAX_ADAPTERS:]
    if beyond:
        registry.conflicts.append(
            f"a MambaGateway serves at most {MAX_ADAPTERS} adapters, and of {len(adapters)} these are left "
            f"out: {', '.join(beyond[:8])}{', …' if len(beyond) > 8 else ''}; name fewer in "
            "spec.model.adapters, or create another MambaGateway for their models"
        )
    return {name: model for name, model in adapters.items() if name not in beyond}


def _models(document: ModelsDocument, by_name: Mapping[str, Candidate]) -> tuple[ServedModel, ...]:
    """Return the models of the document as the status lists them; `by_name` has the candidate of each."""
    return tuple(
        ServedModel(
            name=entry.name,
            deployment=by_name[entry.name].deployment,
            state=by_name[entry.name].state,
            aliases=list(entry.aliases),
            adapters=[one.name for one in document.models if one.parent == entry.name],
        )
        for entry in document.models
        if entry.parent is None
    )


class _Lookup:
    """Finds models by name, and notes the names that belong to no model."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = models
        self.unknown: list[str] = []

    def model(self, place: str, name: str) -> str | None:
        """Return the model with a name; None if there is none, which is noted for a place of the spec."""
        if name not in self._models:
            self.unknown.append(f"{place}: {name}")
        return self._models.get(name)


def _usable(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates whose name can stand in the file of models, and sentences about the others."""
    usable, conflicts = [], []
    for one in candidates:
        try:
            ModelEntry(name=one.served_name)
        except ValidationError:
            conflicts.append(
                f"MambaDeployment {one.deployment} is left out, because its served name {one.served_name!r} "
                "is not 1 to 253 characters without control characters: change spec.model.servedName"
            )
        else:
            usable.append(one)
    return usable, conflicts


def _aliases(spec: MambaGatewaySpec, conflicts: list[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the model of each alias, and the aliases of each model that are another model's already."""
    models: dict[str, str] = {}
    unnamed: dict[str, list[str]] = {}
    for group in spec.aliases:
        for name in group.names:
            if name in models:
                unnamed.setdefault(group.model, []).append(name)
                conflicts.append(
                    f"{name!r} is an alias of {models[name]!r} and of {group.model!r} in the spec, and leads "
                    f"to {models[name]!r}: remove it from one of the two"
                )
            else:
                models[name] = group.model
    return models, unnamed


def _fallbacks_of_all(spec: MambaGatewaySpec, lookup: _Lookup) -> dict[str, list[str]]:
    """Return the fallbacks of each model, each once, by their models' names."""
    fallbacks = {}
    for group in spec.fallbacks:
        if (model := lookup.model("fallbacks", group.model)) is not None:
            others = dict.fromkeys(lookup.model("fallbacks", name) for name in group.to)
            fallbacks[model] = [name for name in others if name is not None and name != model]
    return fallbacks


def _access(spec: MambaGatewaySpec, lookup: _Lookup) -> tuple[KeyAccess, ...] | None:
    """Return the models of each key; None if every key may use every model."""
    if not spec.keys:
        return None
    return tuple(
        KeyAccess(key=key.name, models=tuple(dict.fromkeys(_rights(key.models, lookup)))) for key in spec.keys
    )


def _rights(models: Iterable[str], lookup: _Lookup) -> Iterator[str]:
    for name in models:
        model = name if name == EVERY_MODEL else lookup.model("keys", name)
        if model is not None:
            yield model
