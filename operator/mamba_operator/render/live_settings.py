"""Settings that running engines take over (`LIVE`), and which engines have to be sent a change. Pure.

New engines read them from the ConfigMap X-engine. Its annotation `tuned` has the time of the last change, so
that a change is sent only to engines that may have started before it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.manifest import Manifest, annotation, digest, metadata
from mamba_operator.objects.pod_trouble import serves
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.render.revision import pod_revision
from mamba_settings.live_settings import LIVE

MOUNT_LAG = 120.0
"""Seconds after a change in which the file that a pod mounts may still be the one before."""
AGAIN = 5.0
"""Seconds until an update that an engine did not accept is sent again."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """The settings in force, and since when."""

    settings: Mapping[str, Any]
    changed: str | None
    """RFC 3339; None: never since the first engine was made."""

    @property
    def digest(self) -> str:
        """Tells one from another."""
        return digest(dict(self.settings))

    def annotation(self) -> str:
        """How the annotation says it."""
        return json.dumps({"settings": self.digest, "changed": self.changed})

    def body(self) -> dict[str, Any]:
        """Body of `PUT /admin/strategy`. An engine that chose for itself keeps what it chose."""
        asked = {name: self.settings.get(setting) for setting, name in LIVE.items()}
        return {name: value for name, value in asked.items() if value not in (None, "Auto")}


@dataclass(frozen=True, slots=True)
class SettingsUpdate:
    """Live settings that one engine has to be sent."""

    pod: str
    run: str
    """Which start of which pod: one that starts again reads the file again."""
    address: str
    settings: str
    """Hash of them."""
    body: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RejectedUpdate:
    """An update that an engine did not accept."""

    update: SettingsUpdate
    message: str
    final: bool
    """It answered no; otherwise it gave no answer."""


def restart_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that need a new pod."""
    return {name: value for name, value in document.items() if name not in LIVE}


def live_settings(
    document: Mapping[str, Any], config: Manifest | None, engine: Manifest | None, now: datetime
) -> LiveSettings:
    """What is in force by the settings `document`, given the ConfigMap and the Deployment that are there."""
    current = LiveSettings({name: document.get(name) for name in LIVE}, None)
    if engine is None:
        return current
    recorded = _recorded(config)
    changed = recorded.get("changed") if recorded.get("settings") == current.digest else timestamp(now)
    return LiveSettings(current.settings, changed if isinstance(changed, str) else None)


def pending_updates(
    pods: Iterable[Manifest], tuned: LiveSettings, revision: str, sent: Mapping[str, str]
) -> tuple[SettingsUpdate, ...]:
    """Updates for ready engines of the revision that started before the change and were not `sent` it.

    `sent`: hash of the settings that each run of an engine accepted, as `Snapshot.sent_settings`.
    """
    changed = parse_timestamp(tuned.changed) if tuned.changed is not None else None
    if changed is None:
        return ()
    found = []
    for pod in pods:
        meta, status = metadata(pod), pod.get("status") or {}
        started = parse_timestamp(str(meta.get("creationTimestamp")))
        run = _run(pod)
        if (
            serves(pod)
            and status.get("podIP")
            and pod_revision(pod) == revision
            and (started is None or (started - changed).total_seconds() < MOUNT_LAG)
            and sent.get(run) != tuned.digest
        ):
            found.append(
                SettingsUpdate(str(meta.get("name")), run, str(status["podIP"]), tuned.digest, tuned.body())
            )
    return tuple(sorted(found, key=lambda one: one.pod))


def _run(pod: Manifest) -> str:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    restarts = sum(int(one.get("restartCount") or 0) for one in containers)
    return f"{metadata(pod).get('uid')}/{restarts}"


def _recorded(config: Manifest | None) -> dict[str, Any]:
    text = annotation(config, names.ANNOTATION_TUNED) if config is not None else None
    try:
        recorded = json.loads(text) if text is not None else None
    except ValueError:
        return {}
    return recorded if isinstance(recorded, dict) else {}
