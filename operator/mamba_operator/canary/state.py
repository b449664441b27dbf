"""`CanaryState`: the present step of a canary, and what a person asked of it, as recorded. Pure.

The state is an annotation of the Deployment X-candidate, so that it ends with the candidate and survives a
restart of the operator and a lost status. The request is an annotation of the MambaDeployment that names the
revision, so that it concerns no later candidate.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, annotation
from mamba_operator.objects.recorded_status import parse_timestamp

SHADOW_STEP = -1
"""Index of the phase before the first step, in which the candidate answers copies of requests."""
Verb = Literal["pause", "resume", "promote", "abort"]


@dataclass(frozen=True, slots=True)
class CanaryState:
    """The step that one candidate is in, as its Deployment records it."""

    revision: str
    """Value of the label `revision` of the candidate's pods."""
    step: int = 0
    """Index of the step; `SHADOW_STEP` = the phase of copies before the first one."""
    since: str | None = None
    """Time at which the weight of the step came into force, as the API writes times; None = its engines are
    not ready, and the weight of the step before is in force."""

    def annotation(self) -> str:
        """Return the text of the annotation `canary-state`."""
        return json.dumps(asdict(self))

    @property
    def began(self) -> datetime | None:
        """Time at which the weight of the step came into force; None = it has not, or the text is no time."""
        return parse_timestamp(self.since) if self.since is not None else None


def state_in(candidate: Manifest | None) -> CanaryState | None:
    """Return the state that the Deployment X-candidate records.

    The result is None if there is no such Deployment, or its annotation is missing or invalid.
    """
    text = annotation(candidate, names.ANNOTATION_CANARY_STATE) if candidate is not None else None
    try:
        state = CanaryState(**json.loads(text)) if text is not None else None
    except (TypeError, ValueError):
        return None
    if state is None or not (isinstance(state.revision, str) and isinstance(state.step, int)):
        return None
    if state.step < SHADOW_STEP or (state.since is not None and not isinstance(state.since, str)):
        return None
    return state


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """Says what a person has requested of a canary by an annotation."""

    verb: Verb
    revision: str
    """Revision of the candidate that the request concerns."""
    step: int | None = None
    """With resume: number of the step that need not wait for a person, from 1; 0 = the phase of copies."""


def request_in(owner: Manifest, revision: str) -> CanaryRequest | None:
    """Return the request about `revision` in the annotation `canary`; None without a valid one."""
    match (annotation(owner, names.ANNOTATION_CANARY) or "").split():
        case ["pause" | "promote" | "abort" as verb, named] if named == revision:
            return CanaryRequest(verb, named)
        case ["resume", named, number] if named == revision and number.isascii() and number.isdigit():
            return CanaryRequest("resume", named, int(number[:4]))
    return None
