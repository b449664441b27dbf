"""`parse_timestamp`: parses times in objects leniently, because anybody may have written them. Pure."""

from datetime import UTC, datetime


def parse_timestamp(text: str) -> datetime | None:
    """Return the time in the text, UTC if it names no zone; None if the text is no time."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
