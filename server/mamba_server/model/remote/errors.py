"""Errors of reading a model from a bucket, a registry or a web server. Every message says what to do.

RemoteError
├── MissingFiles      the bucket, the repository or a file does not exist, or holds no model
├── AccessDenied      the store refused the credentials, or there are none, or they cannot be read
├── Interrupted       the store cannot be reached or broke off; the same request may succeed later
├── FilesChanged      the files are no longer those that the download began with
├── DamagedFile       a file differs from its checksum
├── FullDisk          the disk has no space for the download, or cannot be written
└── MissingExtra      an optional package that reads the store is not installed
"""


class RemoteError(Exception):
    """Base of the errors of reading a model from a store."""


class MissingFiles(RemoteError):
    """The bucket, the repository or a file does not exist, or holds no model."""


class AccessDenied(RemoteError):
    """The store refused the credentials, or there are none, or they cannot be read."""


class Interrupted(RemoteError):
    """The store cannot be reached or broke off; the same request may succeed later."""


class FilesChanged(RemoteError):
    """The files are no longer those that the download began with."""


class DamagedFile(RemoteError):
    """A file differs from its checksum."""


class FullDisk(RemoteError):
    """The disk has no space for the files of `commit`, or cannot be written."""

    def __init__(self, message: str, commit: str) -> None:
        super().__init__(message)
        self.commit = commit


class MissingExtra(RemoteError):
    """An optional package that reads the store is not installed."""
