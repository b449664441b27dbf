"""What finding and loading a model can fail with. Every message says what to do; none is a bug of ours.

ModelError
├── SourceError            the URI leads to no usable model directory
│   ├── InvalidSource      the URI itself is malformed
│   ├── SourceNotFound     nothing there, or no config.json in it
│   ├── InsufficientDiskSpace the disk does not hold what is to be fetched
│   └── DownloadFailed     the Hub refused or broke off; what arrived is kept for the next attempt
├── UnsupportedModel       the configuration is understood, but its kind of layer cannot be served
└── WeightsError           the safetensors files and the configuration disagree, or a file is damaged
"""


class ModelError(Exception):
    """Base. `exit_code` is what the process that cannot start ends with."""

    exit_code = 2


class SourceError(ModelError):
    """The URI leads to no usable model directory."""


class InvalidSource(SourceError):
    """The URI is malformed."""


class SourceNotFound(SourceError):
    """Nothing there, or no config.json in it."""


class InsufficientDiskSpace(SourceError):
    """The disk does not hold what is to be fetched: the model of that commit."""

    def __init__(self, message: str, commit: str) -> None:
        super().__init__(message)
        self.commit = commit


class DownloadFailed(SourceError):
    """The Hub refused or broke off."""

    exit_code = 1


class UnsupportedModel(ModelError):
    """Understood, but not servable; the message names what is missing."""


class WeightsError(ModelError):
    """Files and configuration disagree; the message names the file and the tensor."""
