"""Bodies that are coded, as with gzip: neither engine nor gateway reads one, and both say so in one way."""

from mamba_edge.errors import UnsupportedMediaType


def require_plain(encoding: str | None) -> None:
    """Raise UnsupportedMediaType for a body with this Content-Encoding, unless it says that there is none."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"a body with Content-Encoding {encoding[:80]!r} is not read; send it plain"
        )
