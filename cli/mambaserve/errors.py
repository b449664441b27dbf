"""Errors of the Python interface.

LlmError
├── EngineEnded     the engine could not start, or its process ended
├── RequestRefused  the engine refused a request: the message names the field
└── StateMismatch   states of different models, types or shapes
"""


class LlmError(Exception):
    """Base of all errors of this package."""


class EngineEnded(LlmError):
    """The engine could not start, or its process ended; the message has the reason."""


class RequestRefused(LlmError, ValueError):
    """The engine refused a request.

    Attributes:
        status: status of the HTTP answer; 400 for a state that could not be saved or loaded.
        index: number of the prompt among the prompts of the call.
    """

    def __init__(self, message: str, status: int = 400, index: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.index = index


class StateMismatch(LlmError, ValueError):
    """Two states, or a state and an array, are of different models, types or shapes."""
