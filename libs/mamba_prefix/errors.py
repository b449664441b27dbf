"""Errors of the prefix index.

PrefixIndexError
├── ForeignMessage    bytes that another program or version wrote
├── BadRedisUrl       an unusable address; a ValueError
└── RedisAway         Redis does not answer, or answers wrongly
"""


class PrefixIndexError(Exception):
    """Base class of the errors of the prefix index. The message says what went wrong."""


class ForeignMessage(PrefixIndexError):
    """Bytes that no engine of this version wrote."""


class BadRedisUrl(PrefixIndexError, ValueError):
    """An address of a Redis that is invalid. The message never contains a password."""


class RedisAway(PrefixIndexError):
    """A Redis that is down, slow, full, or refuses commands: try again later."""
