"""`StreamFrame`: what a stream carries besides the answer: its end, its errors, and signs of life. Pure."""

from mamba_edge.errors import ApiError
from mamba_server.api.answers import responses


class StreamFrame:
    """The frame of streams in OpenAI's form, which builders of answers inherit; dialects have their own."""

    quiet = responses.COMMENT
    """Bytes that keep a stream alive while nothing can be sent."""
    done = responses.DONE
    """Bytes at the end of every stream."""

    def failure(self, error: ApiError) -> bytes:
        """Encode an error after the first event."""
        return error.event()
