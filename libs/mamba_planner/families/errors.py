"""Errors of reading a model's configuration; each names the source, the field and what is accepted.

ModelConfigError          exit code 2; a process that meets it does not start and serves no HTTP
├── UnknownArchitecture   no adapter for `model_type` / `architectures`
├── MissingField          a needed field is absent under all of its known names
├── WrongField            a field has a value of the wrong type or outside its range
└── UnreadableConfig      the file is absent or is not a JSON object
"""


class ModelConfigError(ValueError):
    """Base class. `source` is the file (or `spec.model.config`), `field` the name of the field, if any."""

    exit_code = 2

    def __init__(self, source: str, message: str, field: str | None = None) -> None:
        self.source = source
        self.field = field
        super().__init__(f"{source}: {message}")


class UnknownArchitecture(ModelConfigError):
    """A model that no adapter knows."""


class MissingField(ModelConfigError):
    """A required field that is absent."""


class WrongField(ModelConfigError):
    """A field with an unusable value."""


class UnreadableConfig(ModelConfigError):
    """A configuration that cannot be read at all."""
