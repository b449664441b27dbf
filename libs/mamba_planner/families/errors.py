"""Errors of reading a model's configuration; each names the source, the field and what is accepted.

ModelConfigError          exit code 2, HTTP is never reached: a process that meets it does not start
├── UnknownArchitecture   no adapter for `model_type` / `architectures`
├── MissingField          a needed field is absent under all of its known names
├── WrongField            a field has a value of the wrong type or outside its range
└── UnreadableConfig      the file is absent or is not a JSON object
"""


class ModelConfigError(ValueError):
    """Base. `source` is the file (or `spec.model.config`), `field` the name in it, if one is to blame."""

    exit_code = 2

    def __init__(self, source: str, message: str, field: str | None = None) -> None:
        self.source = source
        self.field = field
        super().__init__(f"{source}: {message}")


class UnknownArchitecture(ModelConfigError):
    """No adapter knows this model."""


class MissingField(ModelConfigError):
    """A field the adapter cannot do without is absent."""


class WrongField(ModelConfigError):
    """A field is there and its value cannot be used."""


class UnreadableConfig(ModelConfigError):
    """The configuration cannot be read at all."""
