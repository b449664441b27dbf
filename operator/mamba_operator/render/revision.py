"""`EngineRevision`: pod template and settings of engines. X-last-ready keeps the last ready revision. Pure.

The ConfigMap keeps it whole and as it was rendered: a newer operator might render other pods from an older
spec.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, digest, metadata

RECORD_KEY = "revision.json"
"""Key of the revision in the ConfigMap."""


@dataclass(frozen=True, slots=True)
class EngineRevision:
    """A pod template and the settings that its pods read."""

    template: Manifest = field(hash=False)
    document: dict[str, Any] = field(hash=False)

    @property
    def label(self) -> str:
        """Return the value of the label `revision` of its pods."""
        return str(self.template["metadata"]["labels"][names.LABEL_REVISION])

    @property
    def digest(self) -> str:
        """Return a hash of the whole revision, including the settings that running engines apply."""
        return digest([self.template, self.document])

    def record(self) -> dict[str, str]:
        """Return `data` of the ConfigMap."""
        return {RECORD_KEY: json.dumps({"template": self.template, "document": self.document})}


def revision_in(config: Manifest | None) -> EngineRevision | None:
    """Return the revision that the ConfigMap keeps; None where it holds no readable one."""
    try:
        kept = json.loads(((config or {}).get("data") or {})[RECORD_KEY])
        revision = EngineRevision(kept["template"], kept["document"])
        usable = isinstance(revision.document, dict) and isinstance(revision.template["spec"], dict)
        return revision if usable and revision.label else None
    except (KeyError, TypeError, ValueError):
        return None


def pod_revision(pod: Manifest) -> str | None:
    """Return the label `revision` of a pod."""
    return (metadata(pod).get("labels") or {}).get(names.LABEL_REVISION)


def label_of(engine: Manifest) -> str | None:
    """Return the label `revision` of the pods that the Deployment creates."""
    try:
        return str(engine["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])
    except (KeyError, TypeError):
        return None
