"""Why there is no image."""


class CannotBuild(Exception):
    """An image cannot be made here; the message says why and what to do."""
