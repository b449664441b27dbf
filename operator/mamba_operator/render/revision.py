"""`EngineRevision`: what engines are started with; the last ready one is kept in X-last-ready. Pure.

Kept whole and as it was rendered: an older spec, rendered by a newer operator, might be other pods.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, digest, metadata

RECORD_KEY = "revision.json"
"""Key inside the ConfigMap."""


@dataclass(frozen=True, slots=True)
class EngineRevision:
    """A pod template and the settings that its pods read."""

    template: Manifest = field(hash=False)
    document: dict[str, Any] = field(hash=False)

    @property
    def label(self) -> str:
        """Value of the label `revision` of its pods."""
        return str(self.template["metadata"]["labels"][names.LABEL_REVISION])

    @property
    def digest(self) -> str:
        """Tells it from any other, settings that running engines take over included."""
        return digest([self.template, self.document])

    def record(self) -> dict[str, str]:
        """`data` of the ConfigMap."""
        return {RECORD_KEY: json.dumps({"template": self.template, "document": self.document})}


def revision_in(config: Manifest | None) -> EngineRevision | None:
    """The revision that the ConfigMap keeps; None where there is none that can be read."""
    try:
        kept = json.loads(((config or {}).get("data") or {})[RECORD_KEY])
        revision = EngineRevision(kept["template"], kept["document"])
        usable = isinstance(revision.document, dict) and isinstance(revision.template["spec"], dict)
        return revision if usable and revision.label else None
    except (KeyError, TypeError, ValueError):
        return None


def pod_revision(pod: Manifest) -> str | None:
    """The label `revision` of a pod."""
    return (metadata(pod).get("labels") or {}).get(names.LABEL_REVISION)


def label_of(engine: Manifest) -> str | None:
    """The label `revision` that pods of the Deployment are made with."""
    try:
        return str(engine["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])
    except (KeyError, TypeError):
        return None
