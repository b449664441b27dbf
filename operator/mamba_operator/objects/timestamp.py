"""`parse_timestamp`: reads the times in objects leniently, since anybody may have written them. Pure."""

from datetime import UTC, datetime


def parse_timestamp(text: str) -> datetime | None:
    """The time that somebody wrote; None for what is none. Without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
