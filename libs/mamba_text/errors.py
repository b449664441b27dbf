"""What the text side can fail with.

TextError
├── BadTokenizer    the model directory's tokenizer cannot be used; the server exits 2
├── BadTemplate     the model directory's chat template cannot be used; the server exits 2
└── TemplateRefused the chat template refused this conversation; the client gets 400
"""


class TextError(Exception):
    """Base. `exit_code` is what a process that cannot start ends with."""

    exit_code = 2


class BadTokenizer(TextError):
    """tokenizer.json or tokenizer_config.json is missing, broken, or does not fit the model."""


class BadTemplate(TextError):
    """The chat template does not compile."""


class TemplateRefused(TextError):
    """The template raised for these messages (raise_exception, a missing field, a forbidden access)."""
