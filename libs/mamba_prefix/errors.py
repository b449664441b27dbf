"""Errors of the prefix index.

PrefixIndexError
├── ForeignMessage    something else wrote there
├── BadRedisUrl       an address that cannot be used; a ValueError
└── RedisAway         Redis does not answer, or not as it should
"""


class PrefixIndexError(Exception):
    """Says what to do."""


class ForeignMessage(PrefixIndexError):
    """Bytes that no engine of this version wrote."""


class BadRedisUrl(PrefixIndexError, ValueError):
    """The address of a Redis is wrong. Never shows a password."""


class RedisAway(PrefixIndexError):
    """Redis is down, slow, full, or refuses: try again later."""
