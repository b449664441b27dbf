"""What the operator can fail with, and what follows from each.

OperatorError
├── ClusterError            the API server said no, or nothing
│   ├── Unreachable         no answer, 5xx or 429: retried with back-off, after `retry_after` at least
│   ├── Conflict            409: somebody wrote at the same time; observed again and retried at once
│   ├── NotFound            404: the object or its kind is not there
│   ├── Forbidden           401, 403: RBAC lacks a rule; the message names verb and resource
│   └── ObjectRejected      400, 413, 422, and 403 of an admission plugin (a quota, a volume that cannot
│       │                   grow): the object breaks a rule; the message is the server's
│       └── NotInSchema     500 of an apply: a field that the kind does not have; condition InvalidSpec
├── NameTaken               a child's name belongs to somebody else's object; condition ApplyFailed
├── Terminating             a child is on its way out and comes back when it is gone; retried soon
├── InvalidPatch            a pod template that cannot be merged; condition InvalidSpec
├── SettingsInvalid         wrong settings; exit code 2
├── PassHangs               what acts does not end; the lease is kept until it runs out
└── LeadershipLost          another operator took the lease; the process ends with exit code 1

`condition_reason` is the word that the condition and the event carry.
"""

import re
from typing import ClassVar

from mamba_api.v1alpha1.conditions import Reason

_TYPED_PATCH = re.compile(
    r"failed to create typed (?:patch|live) object \(.*?\): (?:errors:\s*)?(\.\S+?): (.*)", re.DOTALL
)


_OF_ADMISSION = re.compile(r"is forbidden: (?!user )|denied the request", re.IGNORECASE)


class OperatorError(Exception):
    """Base: the message says what happened and what to do."""

    condition_reason: ClassVar[Reason] = Reason.APPLY_FAILED


class ClusterError(OperatorError):
    """The API server refused a request or gave no answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 without an answer."""
        self.retry_after = retry_after
        """Seconds the server asked to wait."""


class Unreachable(ClusterError):
    """No answer, 5xx or 429."""


class Conflict(ClusterError):
    """409."""


class NotFound(ClusterError):
    """404."""


class Forbidden(ClusterError):
    """401 or 403."""

    condition_reason = Reason.FORBIDDEN


class ObjectRejected(ClusterError):
    """400, 413 or 422, or an admission plugin's 403."""


class NotInSchema(ObjectRejected):
    """A field that the kind does not have, or of another type; `path` is where, `complaint` what about it."""

    condition_reason = Reason.INVALID_SPEC

    def __init__(self, message: str, *, path: str, complaint: str, status: int = 500) -> None:
        super().__init__(message, status=status)
        self.path, self.complaint = path, complaint


class NameTaken(OperatorError):
    """A child's name belongs to somebody else's object."""


class Terminating(OperatorError):
    """A child is on its way out."""


class InvalidPatch(OperatorError):
    """A pod template that cannot be merged."""

    condition_reason = Reason.INVALID_SPEC


class SettingsInvalid(OperatorError):
    """Wrong settings."""


class PassHangs(OperatorError):
    """Something that may write was asked to end and has not."""


class LeadershipLost(OperatorError):
    """Another operator took the lease."""


def of_status(status: int, message: str, retry_after: float | None = None) -> ClusterError:
    """The error an HTTP status stands for."""
    # The API server answers a typing error in a server-side apply with 500, as if it were at fault itself.
    if status == 500 and (found := _TYPED_PATCH.search(message)):
        return NotInSchema(message, path=found[1], complaint=found[2])
    # RBAC answers `is forbidden: User "..." cannot ...`; with the same status quotas and admission plugins
    # refuse what somebody may well do.
    if status == 403 and _OF_ADMISSION.search(message):
        return ObjectRejected(message, status=status, retry_after=retry_after)
    kinds: dict[int, type[ClusterError]] = {
        400: ObjectRejected, 401: Forbidden, 403: Forbidden, 404: NotFound, 405: ObjectRejected,
        409: Conflict, 413: ObjectRejected, 415: ObjectRejected, 422: ObjectRejected,
    }  # fmt: skip
    return kinds.get(status, Unreachable)(message, status=status, retry_after=retry_after)
