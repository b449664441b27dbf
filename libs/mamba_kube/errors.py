"""What the API server can fail with, for whoever asks it.

Exception
├── ApiError          it refused (`status`), or gave no answer (`status` 0)
└── NoClusterAccess   a ValueError: no service account and no usable kubeconfig; the message says what to give

What follows from a status (retry, give up, tell the user) is decided by the caller.
"""

MAX_MESSAGE = 1000
"""Most characters of the server's words that are kept."""
MAX_LOG_LINE = 300


class ApiError(Exception):
    """The API server refused a request or gave no answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 without an answer."""
        self.retry_after = retry_after
        """Seconds the server asked to wait."""


class NoClusterAccess(ValueError):
    """Neither a pod's service account nor a usable kubeconfig."""


def short(error: Exception) -> str:
    """One line of at most 300 characters for a log."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_LOG_LINE]
