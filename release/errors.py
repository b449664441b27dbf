"""The error of this package."""


class CannotRelease(Exception):
    """The checkout cannot be released as it is; the message says what to do."""
