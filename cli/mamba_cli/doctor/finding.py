"""`Finding`: the result of one check of `mambaserve doctor`."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Severity of a finding for somebody who wants to serve a model."""

    ok = "ok"
    note = "note"
    """The feature is not set up here, and nothing else needs it."""
    warning = "warning"
    """Serving works, but slower or with a limit that users will meet."""
    broken = "broken"
    """Serving fails, or a part that is set up here does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: how much it matters, what was seen, and the remedy."""

    subject: str
    """Name of the checked thing, such as `compiler`."""
    verdict: Verdict
    text: str
    """The observation, in one clause."""
    cure: str = ""
    """Remedy; empty where nothing needs to be done."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `doctor --output json` prints."""
        return asdict(self)


def ok(subject: str, text: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(subject, Verdict.ok, text)


def note(subject: str, text: str, cure: str = "") -> Finding:
    """Return the finding that something is not set up and does not have to be."""
    return Finding(subject, Verdict.note, text, cure)


def warning(subject: str, text: str, cure: str) -> Finding:
    """Return the finding of a limit that does not stop a model from being served."""
    return Finding(subject, Verdict.warning, text, cure)


def broken(subject: str, text: str, cure: str) -> Finding:
    """Return the finding of a defect by which serving, or a part that is set up here, fails."""
    return Finding(subject, Verdict.broken, text, cure)
