"""Decision which adapters running engines load and unload, and with which ones new engines start. Pure.

A change of `spec.model.adapters` replaces no pod: the operator carries it out at each running engine. New
engines read their adapters from the ConfigMap X-engine. The ConfigMap keeps the previous adapters until one
running engine serves the new ones, so that an adapter that cannot be loaded keeps no engine from starting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, annotation, digest, label_of, name_of
from mamba_operator.render.context import EngineRevision
from mamba_operator.render.engine import adapters_in, settings_in
from mamba_operator.render.live_settings import changed_at, may_be_older, run_of, running_engines
from mamba_operator.rollout.adapter_outcome import AdapterOutcome, AdapterUpdate
from mamba_settings.adapter_settings import paths_of
from mamba_settings.live_settings import ADAPTERS


@dataclass(frozen=True, slots=True)
class AdapterRollout:
    """The adapters that the engines of one role get now, and the engines that still need theirs."""

    revision: EngineRevision
    """The revision with the adapters with which new engines start."""
    updates: tuple[AdapterUpdate, ...]
    """Running engines that may not serve the adapters of the spec yet."""
    annotation: str
    """Annotation of the ConfigMap: hash of its adapters, and the time of their last change."""


def adapter_rollout(
    revision: EngineRevision,
    config: Manifest | None,
    engine: Manifest | None,
    pods: Sequence[Manifest],
    outcomes: Mapping[str, AdapterOutcome],
    now: datetime,
) -> AdapterRollout:
    """Decide about the adapters of the engines of one role.

    Args:
        revision: the revision that engines are to have, with the adapters of the spec.
        config: the existing ConfigMap X-engine.
        engine: the existing engine Deployment.
        pods: the pods of the deployment.
        outcomes: result of the last attempt by run of an engine.
        now: the time, with a time zone.
    """
    adapters = adapters_in(revision.document)
    if engine is None:
        return AdapterRollout(revision, (), _note(adapters, None))
    recorded = adapters_in(settings_in(config)) if config is not None else adapters
    settings = digest(adapters)
    changed = changed_at(config, names.ANNOTATION_ADAPTERS, settings, now)
    if adapters == recorded and (config is None or annotation(config, names.ANNOTATION_ADAPTERS) is None):
        changed = None  # an older operator wrote these adapters, with which its engines have started
    outdated = [
        pod
        for pod in running_engines(pods, revision.label)
        if (changed is not None and may_be_older(pod, changed))
        or _is_left_halfway(outcomes.get(run_of(pod)), settings)
    ]
    pending = [pod for pod in outdated if outcomes.get(run_of(pod)) != AdapterOutcome(settings)]
    updates = tuple(
        AdapterUpdate(name_of(pod), run_of(pod), str(pod["status"]["podIP"]), settings, paths_of(adapters))
        for pod in pending
    )
    if adapters != recorded and label_of(engine) == revision.label and 0 < len(pending) == len(outdated):
        revision = replace(revision, document=_with_adapters(revision.document, recorded))
        settings = digest(recorded)
        return AdapterRollout(
            revision, updates, _note(recorded, changed_at(config, names.ANNOTATION_ADAPTERS, settings, now))
        )
    return AdapterRollout(revision, updates, _note(adapters, changed))


def _is_left_halfway(outcome: AdapterOutcome | None, settings: str) -> bool:
    """Return whether an engine was last given other adapters, of which it may have loaded some."""
    return outcome is not None and outcome.settings != settings


def _note(adapters: Sequence[str], changed: str | None) -> str:
    return json.dumps({"settings": digest(adapters), "changed": changed})


def _with_adapters(document: Mapping[str, Any], adapters: Sequence[str]) -> dict[str, Any]:
    rest = {name: value for name, value in document.items() if name != ADAPTERS}
    return {**rest, ADAPTERS: [*adapters]} if adapters else rest
