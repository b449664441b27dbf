"""`Candidate`: a MambaDeployment whose model a gateway may serve, as the gateway has to know it. Pure.

Called by `plan_gateway`. `resolution` decides which names the candidates get.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.conditions import ConditionType, Reason
from mamba_api.v1alpha1.gateway_status import ModelState
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata, name_of, section
from mamba_planner.hand_over import hand_over_tokens
from mamba_settings.models_document import ModelEntry, ModelsDocument
from mamba_settings.spec_settings import key_limit, model_entry_settings

ENGINE_KEYS_MOUNT = "/run/mambaserve/engine-keys"
REDIS_MOUNT = "/run/mambaserve/redis"
PresentsKey = Callable[[str], bool]
"""Returns whether the gateway of the MambaDeployment with a name presents a key to its engines."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One MambaDeployment whose model a MambaGateway serves, with what the gateway needs of it."""

    deployment: str
    """Name of the MambaDeployment."""
    created_at: str
    """Time of its creation, as the API writes times."""
    served_name: str
    state: ModelState
    requires_keys: bool = False
    """Whether its own gateway serves only clients that present a key."""
    settings: Mapping[str, Any] = field(hash=False, default_factory=dict)
    """Settings of the model's entry in the file of models."""
    engine_key: str | None = None
    """Secret with the key that the engines require; None = they require none."""
    redis: str | None = None
    """Secret with the address of the Redis of its prefix index; None = there is none, or it is no secret."""
    adapters: tuple[str, ...] = ()
    """Names of the adapters that its engines serve beside the model."""

    @property
    def age(self) -> tuple[str, str]:
        """Sort key of candidates: by age, the oldest first, and equally old ones by name."""
        return self.created_at, self.deployment


def candidates(
    gateway: MambaGateway,
    deployments: Iterable[Manifest],
    previous: ModelsDocument | None,
    presents_key: PresentsKey,
) -> list[Candidate]:
    """Return the MambaDeployments that the gateway serves, the oldest first.

    A MambaDeployment in mode Plan serves nothing, and one that is being deleted gets no further requests. If
    an edit has made a MambaDeployment invalid, its engines still run as before, and its entry stays.

    Args:
        gateway: the gateway.
        deployments: all MambaDeployments of its namespace.
        previous: the file of models as it is now; None = there is none.
        presents_key: tells whether engines may require a key.
    """
    models = previous.models if previous else ()
    entries = {entry.settings.get("deployment"): entry for entry in models if entry.parent is None}
    adapters = {
        entry.name: tuple(one.engine_name for one in models if one.parent == entry.name)
        for entry in entries.values()
    }
    matching = (
        one
        for one in deployments
        if not is_terminating(one) and gateway.spec.selector.matches(dict(metadata(one).get("labels") or {}))
    )
    chosen = _candidates(gateway, matching, entries, adapters, presents_key)
    return sorted(chosen, key=lambda candidate: candidate.age)


def _candidates(
    gateway: MambaGateway,
    deployments: Iterable[Manifest],
    entries: Mapping[Any, ModelEntry],
    adapters: Mapping[str, tuple[str, ...]],
    presents_key: PresentsKey,
) -> Iterator[Candidate]:
    for manifest in deployments:
        name, created_at = name_of(manifest), str(metadata(manifest).get("creationTimestamp") or "")
        try:
            deployment = MambaDeployment.model_validate(
                {key: value for key, value in manifest.items() if key != "status"},
                by_alias=True,
                by_name=False,
            )
        except ValidationError:
            if (entry := entries.get(name)) is not None:
                yield _unchanged(gateway, manifest, name, created_at, entry, adapters[entry.name])
            continue
        if deployment.spec.mode != "Plan":
            yield _candidate(gateway, deployment, created_at, model_state(manifest), presents_key(name))


def _unchanged(
    gateway: MambaGateway,
    manifest: Manifest,
    name: str,
    created_at: str,
    entry: ModelEntry,
    adapters: tuple[str, ...],
) -> Candidate:
    """Return the candidate of an invalid MambaDeployment from `entry`, its entry in the file of models."""
    uid = str(metadata(manifest).get("uid") or "")
    has_key = "backend_key_file" in entry.settings
    # The address in a Secret is lost with the field that names the Secret.
    settings = {key: value for key, value in entry.settings.items() if key != "redis_url_file"}
    return Candidate(
        name,
        created_at,
        entry.engine_name,
        model_state(manifest),
        has_key,
        {**_own_index(gateway), **settings},
        names.Children(name).engine_key(uid) if has_key else None,
        adapters=adapters,
    )


def _candidate(
    gateway: MambaGateway, deployment: MambaDeployment, created_at: str, state: ModelState, presents_key: bool
) -> Candidate:
    name, spec = deployment.name, deployment.spec
    settings: dict[str, Any] = {
        "deployment": name,
        "namespace": deployment.namespace,
        **model_entry_settings(deployment, hand_over_tokens(deployment)),
    }
    if gateway.spec.auth is not None and spec.gateway.limits.keys:
        settings["key_limit"] = [key_limit(key) for key in spec.gateway.limits.keys]
    redis, secret = spec.prefix_index.redis, None
    if redis is not None and redis.secret_ref is not None:
        secret = redis.secret_ref.name
        settings["redis_url_file"] = f"{REDIS_MOUNT}/{name}"
    elif redis is not None:
        settings["redis_url"] = redis.url
    else:
        settings |= _own_index(gateway)
    engine_key = None
    if presents_key or spec.gateway.auth is not None:
        engine_key = names.Children(name).engine_key(deployment.metadata.uid or "")
        settings["backend_key_file"] = f"{ENGINE_KEYS_MOUNT}/{name}"
    requires_keys = spec.gateway.auth is not None
    adapters = tuple(adapter.name for adapter in spec.model.adapters)
    return Candidate(
        name, created_at, deployment.served_name, state, requires_keys, settings, engine_key, secret, adapters
    )


def _own_index(gateway: MambaGateway) -> dict[str, Any]:
    """Return the setting of a model whose engines publish nothing to the Redis of the gateway."""
    return {} if gateway.spec.redis is None else {"redis_url": None}


def model_state(manifest: Manifest) -> ModelState:
    """Return the state of a MambaDeployment's model, by the conditions in its status."""
    status = section(manifest, "status")
    conditions = {
        condition.get("type"): condition
        for condition in status.get("conditions") or ()
        if isinstance(condition, Mapping)
    }
    available = conditions.get(ConditionType.AVAILABLE, {})
    if available.get("status") == "True":
        return "Zero" if available.get("reason") == Reason.SCALED_TO_ZERO else "Ready"
    troubles = (conditions.get(type_, {}) for type_ in (ConditionType.DEGRADED, ConditionType.STALLED))
    return "Unavailable" if any(trouble.get("status") == "True" for trouble in troubles) else "Starting"
