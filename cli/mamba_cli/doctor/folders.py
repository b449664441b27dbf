"""Whether files can be kept in a folder that may not exist yet, for the checks of caches."""

import os
from pathlib import Path


def nearest_existing(place: Path) -> Path:
    """Return the place, or the nearest folder above it that exists."""
    return next(path for path in (place, *place.parents) if path.exists())


def can_be_written(existing: Path) -> bool:
    """Return whether `existing` is a folder in which this user can create files."""
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
