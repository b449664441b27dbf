"""Errors of the operator, and the reaction to each.

OperatorError
├── ClusterError            the API server refused or gave no answer
│   ├── Unreachable         no answer, 5xx or 429: retried with back-off, after `retry_after` at least
│   ├── Conflict            409: a concurrent write; observed again and retried at once
│   ├── NotFound            404: the object or its kind does not exist
│   ├── Forbidden           401, 403: RBAC lacks a rule; the message names verb and resource
│   └── ObjectRejected      400, 405, 413, 415, 422, and 403 of an admission plugin (a quota, a volume that
│       │                   cannot grow): the object breaks a rule; the message is the server's
│       ├── ImageVolumesMissing a pod mounts an image, and the cluster has no such volumes
│       └── NotInSchema     500 of an apply: a field that the kind does not have; condition InvalidSpec
├── NameTaken               a child's name belongs to somebody else's object; condition ApplyFailed
├── Terminating             a child is being deleted and is created again afterwards; retried soon
├── InvalidPatch            a pod template that cannot be merged; condition InvalidSpec
├── SettingsInvalid         wrong settings; exit code 2
├── PassHangs               a running pass does not end; the lease is kept until it expires
└── LeadershipLost          another operator took the lease; the process ends with exit code 1

`condition_reason` is the reason in the condition and the event.
"""

import re
from typing import ClassVar

from mamba_api.v1alpha1.conditions import Reason

_TYPED_PATCH = re.compile(
    r"failed to create typed (?:patch|live) object \(.*?\): (?:errors:\s*)?(\.\S+?): (.*)", re.DOTALL
)


_ADMISSION_REFUSAL = re.compile(r"is forbidden: (?!user )|denied the request", re.IGNORECASE)


class OperatorError(Exception):
    """Base of all errors of the operator; the message says what happened and what to do."""

    condition_reason: ClassVar[Reason] = Reason.APPLY_FAILED


class ClusterError(OperatorError):
    """The API server refused a request or gave no answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 without an answer."""
        self.retry_after = retry_after
        """Seconds for which the server asked to wait; None = it did not ask."""


class Unreachable(ClusterError):
    """The API server gave no answer, or answered 5xx or 429."""


class Conflict(ClusterError):
    """The API server answered 409: somebody else has written the object."""


class NotFound(ClusterError):
    """The API server answered 404: the object or its kind does not exist."""


class Forbidden(ClusterError):
    """The API server answered 401 or 403: RBAC lacks a rule."""

    condition_reason = Reason.FORBIDDEN


class ObjectRejected(ClusterError):
    """The API server answered 400, 405, 413, 415 or 422, or an admission plugin answered 403."""


class ImageVolumesMissing(ObjectRejected):
    """A pod mounts the image of a model, and the cluster has no volumes of images."""

    condition_reason = Reason.IMAGE_VOLUMES_NOT_SERVED


class NotInSchema(ObjectRejected):
    """A pod template names a field that the kind lacks, or that has another type.

    `path` is the path of the field, and `complaint` the problem.
    """

    condition_reason = Reason.INVALID_SPEC

    def __init__(self, message: str, *, path: str, complaint: str, status: int = 500) -> None:
        super().__init__(message, status=status)
        self.path, self.complaint = path, complaint


class NameTaken(OperatorError):
    """A child's name belongs to somebody else's object."""


class Terminating(OperatorError):
    """A child is being deleted."""


class InvalidPatch(OperatorError):
    """A pod template that cannot be merged."""

    condition_reason = Reason.INVALID_SPEC


class SettingsInvalid(OperatorError):
    """The operator's settings are invalid."""


class PassHangs(OperatorError):
    """A task that may write was cancelled and has not ended."""


class LeadershipLost(OperatorError):
    """Another operator took the lease."""


def of_status(status: int, message: str, retry_after: float | None = None) -> ClusterError:
    """Return the error for an HTTP status; the server asked to wait for `retry_after` seconds, if set."""
    # The API server answers a typing error in a server-side apply with 500.
    if status == 500 and (typing_error := _TYPED_PATCH.search(message)):
        return NotInSchema(message, path=typing_error[1], complaint=typing_error[2])
    # RBAC answers `is forbidden: User "..." cannot ...`. Quotas and admission plugins answer with the same
    # status, although the operator has the permission.
    if status == 403 and _ADMISSION_REFUSAL.search(message):
        return ObjectRejected(message, status=status, retry_after=retry_after)
    kinds: dict[int, type[ClusterError]] = {
        400: ObjectRejected, 401: Forbidden, 403: Forbidden, 404: NotFound, 405: ObjectRejected,
        409: Conflict, 413: ObjectRejected, 415: ObjectRejected, 422: ObjectRejected,
    }  # fmt: skip
    return kinds.get(status, Unreachable)(message, status=status, retry_after=retry_after)
