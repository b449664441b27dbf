"""The engines of a canary's new revision: their Deployment X-candidate and its settings. Pure.

Their pods differ from those that a promotion creates in one label and in the name of the mounted settings
alone, and have the same label `revision`.
"""

import json
from typing import Any

from mamba_api import names
from mamba_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Candidate, Context, child
from mamba_operator.render.engine_pod import SETTINGS_FILE, SETTINGS_VOLUME


def candidate_config(context: Context, candidate: Candidate) -> Manifest:
    """Return the ConfigMap X-candidate with the settings document of the new revision."""
    return {
        **child(context, CONFIG_MAP, context.children.candidate, "engine"),
        "data": {SETTINGS_FILE: json.dumps(candidate.revision.document, indent=2) + "\n"},
    }


def candidate_deployment(context: Context, candidate: Candidate) -> Manifest:
    """Return the Deployment X-candidate."""
    deployment = context.deployment
    deadline = max(int(deployment.spec.rollout.progress_deadline.seconds), 1)
    track = {names.LABEL_TRACK: names.CANDIDATE}
    notes = {names.ANNOTATION_CANARY_STATE: candidate.state}
    return {
        **child(context, DEPLOYMENT, context.children.candidate, "engine", notes),
        "spec": {
            "replicas": candidate.replicas,
            "selector": {"matchLabels": {**names.engine_selector(deployment.name, context.role), **track}},
            # A candidate that another one replaces gets no more requests, so none of its engines has to stay.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": deadline,
            "revisionHistoryLimit": 0,
            "paused": False,
            "template": _template(context, candidate.revision.template, track),
        },
    }


def _template(context: Context, template: Manifest, track: dict[str, str]) -> Manifest:
    metadata, spec = template["metadata"], template["spec"]
    volumes = [_volume(context, volume) for volume in spec["volumes"]]
    labels = {**metadata["labels"], **track}
    return {
        **template,
        "metadata": {**metadata, "labels": labels},
        "spec": {**spec, "volumes": volumes},
    }


def _volume(context: Context, volume: Any) -> Any:
    """Return the volume; if it is the volume of the settings, with the candidate's own ConfigMap."""
    config = volume.get("configMap")
    if volume.get("name") != SETTINGS_VOLUME or not isinstance(config, dict):
        return volume
    return {**volume, "configMap": {**config, "name": context.children.candidate}}
