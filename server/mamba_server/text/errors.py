"""What the text side can fail with.

TextError
├── BadTokenizer    the model directory's tokenizer cannot be used; the server exits 2
├── BadTemplate     the model directory's chat template cannot be used; the server exits 2
└── TemplateRefused the chat template refused this conversation; the client gets 400
"""


class TextError(Exception):
    """Base."""


class BadTokenizer(TextError):
    """tokenizer.json or tokenizer_config.json is missing, broken, or does not fit the model."""

    exit_code = 2


class BadTemplate(TextError):
    """The chat template does not compile."""

    exit_code = 2


class TemplateRefused(TextError):
    """The template raised for these messages (raise_exception, a missing field, a forbidden access)."""
