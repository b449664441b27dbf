"""Errors of the text side.

TextError
├── BadTokenizer    the model directory's tokenizer cannot be used; the server exits 2
├── BadTemplate     the model directory's chat template cannot be used; the server exits 2
└── TemplateRefused the chat template refused this conversation; the client gets 400
"""


class TextError(Exception):
    """Base class of the errors of this package.

    `exit_code` is the exit status of a process that cannot start.
    """

    exit_code = 2


class BadTokenizer(TextError):
    """A tokenizer.json or tokenizer_config.json that is missing, invalid, or does not fit the model."""


class BadTemplate(TextError):
    """A chat template that does not compile."""


class TemplateRefused(TextError):
    """An error of the template for these messages (raise_exception, a missing field, a forbidden access)."""
