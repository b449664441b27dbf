"""Settings that running engines can apply (`LIVE`), and the engines that still need a change. Pure.

New engines read the settings from the ConfigMap X-engine. Its annotation `tuned` has the time of the last
change, so that the operator sends a change only to engines that may have started before it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.manifest import Manifest, annotation, digest, metadata, name_of, pod_revision
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.objects.recorded_status import parse_timestamp
from mamba_settings.live_settings import ADAPTERS, LIVE

MOUNT_LAG = 120.0
"""Seconds after a change for which a pod that starts may still read the previous file."""
AGAIN = 5.0
"""Seconds until an update that an engine did not accept is sent again."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """The settings that running engines can take over, and when they last changed."""

    settings: Mapping[str, Any]
    changed: str | None
    """Time of the last change, RFC 3339; None = no change since the first engine was created."""

    @property
    def digest(self) -> str:
        """Hash of the settings."""
        return digest(dict(self.settings))

    def annotation(self) -> str:
        """Return the text of the annotation `tuned`."""
        return json.dumps({"settings": self.digest, "changed": self.changed})

    def body(self) -> dict[str, Any]:
        """Return the body of `PUT /admin/strategy`, without settings that the engine chooses itself."""
        values = {name: self.settings.get(setting) for setting, name in LIVE.items()}
        return {name: value for name, value in values.items() if value not in (None, "Auto")}


@dataclass(frozen=True, slots=True)
class EngineUpdate:
    """Settings that the operator has to bring to one running engine."""

    pod: str
    run: str
    """Identity of one start of the pod's containers. After a restart the engine reads the file again."""
    address: str
    settings: str
    """Hash of the settings."""


@dataclass(frozen=True, slots=True)
class SettingsUpdate(EngineUpdate):
    """Live settings that the operator has to send to one engine."""

    body: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RejectedUpdate:
    """Says which engine did not accept its settings, and why."""

    update: SettingsUpdate
    message: str
    final: bool
    """Whether the engine refused the update; False = no answer or a server error, so it is sent again."""


def restart_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the document whose change needs a new pod."""
    return {name: value for name, value in document.items() if name not in LIVE and name != ADAPTERS}


def live_settings(
    document: Mapping[str, Any], config: Manifest | None, engine: Manifest | None, now: datetime
) -> LiveSettings:
    """Return the live settings of `document`, with the time of their last change.

    `config` and `engine` are the existing ConfigMap and Deployment; a change begins at `now`.
    """
    current = LiveSettings({name: document.get(name) for name in LIVE}, None)
    if engine is None:
        return current
    return LiveSettings(current.settings, changed_at(config, names.ANNOTATION_TUNED, current.digest, now))


def changed_at(config: Manifest | None, annotation_name: str, settings: str, now: datetime) -> str | None:
    """Return since when the ConfigMap has the settings with the hash `settings`; `now` if it has others.

    None = since before the first engine. `annotation_name` is the annotation that records hash and time.
    """
    recorded = _recorded(config, annotation_name)
    changed = recorded.get("changed") if recorded.get("settings") == settings else timestamp(now)
    return changed if isinstance(changed, str) else None


def pending_updates(
    pods: Iterable[Manifest], tuned: LiveSettings, revision: str, sent: Mapping[str, str]
) -> tuple[SettingsUpdate, ...]:
    """Return the updates for ready engines of the revision that may lack the last change.

    Such an engine started before the change and has not accepted it. `sent` has the hash of the settings that
    each run of an engine accepted, as `Snapshot.sent_settings`.
    """
    if tuned.changed is None:
        return ()
    return tuple(
        SettingsUpdate(name_of(pod), run_of(pod), str(pod["status"]["podIP"]), tuned.digest, tuned.body())
        for pod in running_engines(pods, revision)
        if may_be_older(pod, tuned.changed) and sent.get(run_of(pod)) != tuned.digest
    )


def running_engines(pods: Iterable[Manifest], revision: str) -> list[Manifest]:
    """Return the ready engines of the revision that can be called, by name."""
    engines = (pod for pod in pods if serves(pod) and (pod.get("status") or {}).get("podIP"))
    return sorted((pod for pod in engines if pod_revision(pod) == revision), key=name_of)


def may_be_older(pod: Manifest, changed: str) -> bool:
    """Return whether an engine may have started with the settings before a change."""
    started, since = parse_timestamp(str(metadata(pod).get("creationTimestamp"))), parse_timestamp(changed)
    return since is not None and (started is None or (started - since).total_seconds() < MOUNT_LAG)


def run_of(pod: Manifest) -> str:
    """Return the identity of one start of the pod's containers."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    restarts = sum(int(container.get("restartCount") or 0) for container in containers)
    return f"{metadata(pod).get('uid')}/{restarts}"


def _recorded(config: Manifest | None, annotation_name: str) -> dict[str, Any]:
    text = annotation(config, annotation_name) if config is not None else None
    try:
        recorded = json.loads(text) if text is not None else None
    except ValueError:
        return {}
    return recorded if isinstance(recorded, dict) else {}
