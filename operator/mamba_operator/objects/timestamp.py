"""`parse_timestamp`: the times that objects carry, which anybody may have written. Pure."""

from datetime import UTC, datetime


def parse_timestamp(text: str) -> datetime | None:
    """The time that somebody wrote; None for what is none. Without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
