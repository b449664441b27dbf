"""Errors of the test clusters; each message says what to do.

ClusterError
├── ToolMissing     a program of the machine is not there: the message names the package
├── BuildFailed     the Go build failed: the message ends with its last lines
├── NotReady        a component died or did not answer in time: the message ends with its log's last lines
├── Refused         the API server did not take an object: the message holds its words
└── CommandFailed   kubectl, helm or a command inside the node failed: the message holds its output
"""


class ClusterError(Exception):
    """Base of all."""


class ToolMissing(ClusterError):
    """A program of the machine is not there."""


class BuildFailed(ClusterError):
    """The Go build failed."""


class NotReady(ClusterError):
    """A component died or did not answer in time."""


class Refused(ClusterError):
    """The API server did not take an object."""


class CommandFailed(ClusterError):
    """A command against the cluster failed."""

    def __init__(self, message: str, *, returncode: int = 1, stderr: str = "") -> None:
        super().__init__(message)
        self.returncode = returncode
        self.stderr = stderr
