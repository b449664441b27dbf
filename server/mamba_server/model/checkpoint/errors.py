"""Errors of finding and loading a model; no defects of the program. Every message says what to do.

ModelError
├── SourceError            the URI leads to no usable model directory
│   ├── InvalidSource      the URI is malformed
│   ├── SourceNotFound     the model, its revision or its config.json does not exist, or cannot be read
│   ├── InsufficientDiskSpace the disk has no space for the download
│   └── DownloadFailed     the source refused or interrupted the download, or sent damaged files
├── UnsupportedModel       the configuration is valid, but this version cannot serve such a model
├── AdapterError           the files of an adapter are damaged, not served, or of another model
└── WeightsError           the safetensors files and the configuration disagree, or a file is damaged
"""


class ModelError(Exception):
    """Base of the errors of finding and loading a model."""

    exit_code = 2
    """Exit code of a process that cannot start because of the error."""


class SourceError(ModelError):
    """The URI leads to no usable model directory."""


class InvalidSource(SourceError):
    """The URI is malformed."""


class SourceNotFound(SourceError):
    """The model, its revision or its config.json does not exist, or cannot be read."""


class InsufficientDiskSpace(SourceError):
    """The disk has no space to download the model of `commit`."""

    def __init__(self, message: str, commit: str) -> None:
        super().__init__(message)
        self.commit = commit


class DownloadFailed(SourceError):
    """The source refused or interrupted the download, or sent damaged files.

    What has arrived is kept for the next try.
    """

    exit_code = 1


class UnsupportedModel(ModelError):
    """This version cannot serve the model; the message names the feature that is not supported."""


class AdapterError(ModelError):
    """An adapter cannot be used; the message says why."""


class WeightsError(ModelError):
    """Files and configuration disagree; the message names the file and the tensor."""
