"""`StreamFrame`: what a stream carries besides the answer: its end, its errors, and signs of life. Pure."""

from msgspec import UNSET, UnsetType

from mamba_edge.errors import ApiError
from mamba_server.api.answers import responses
from mamba_server.api.answers.responses import VendorBody


class StreamFrame:
    """Gives a builder of answers the end, the errors and the signs of life of a stream in OpenAI's form.

    The builders of all dialects inherit from it; those of other dialects than OpenAI's override its parts.
    """

    quiet = responses.COMMENT
    """Bytes that keep a stream alive while nothing can be sent."""
    done = responses.DONE
    """Bytes at the end of every stream."""
    vendor: VendorBody | UnsetType = UNSET
    """Facts that other servers' APIs do not have, for the end of the answer; set when all choices have
    ended."""

    def failure(self, error: ApiError) -> bytes:
        """Encode an error after the first event."""
        return error.event()


def vendor_fields(vendor: VendorBody | UnsetType) -> dict[str, VendorBody]:
    """Return `vendor` as the field of a body that is a dictionary; {} if `vendor` is not set."""
    return {} if vendor is UNSET else {"mambaserve": vendor}
