"""Errors of requests to the API server.

Exception
├── ApiError          a refusal (`status`), or no answer (`status` 0)
└── NoClusterAccess   a ValueError: no service account and no usable kubeconfig; the message says what to do

The caller decides what follows from a status (retry, give up, tell the user).
"""

MAX_MESSAGE = 1000
"""Maximum characters of the server's message that are kept."""
MAX_LOG_LINE = 300


class ApiError(Exception):
    """A refusal by the API server, or the lack of an answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 without an answer."""
        self.retry_after = retry_after
        """Seconds to wait, if the server named them."""


class NoClusterAccess(ValueError):
    """Lack of both a pod's service account and a usable kubeconfig."""


def short(error: Exception) -> str:
    """Return class and message of `error` as one line of at most 300 characters, for a log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_LOG_LINE]
