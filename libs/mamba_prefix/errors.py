"""Errors of the prefix index.

PrefixIndexError
├── ForeignMessage    bytes that another program or version wrote
├── BadRedisUrl       an unusable address; a ValueError
└── RedisAway         Redis does not answer, or answers wrongly
"""


class PrefixIndexError(Exception):
    """The base of all errors. The message says what to do."""


class ForeignMessage(PrefixIndexError):
    """Bytes that no engine of this version wrote."""


class BadRedisUrl(PrefixIndexError, ValueError):
    """An invalid address of a Redis. The message never contains a password."""


class RedisAway(PrefixIndexError):
    """A Redis that is down, slow, full, or refuses commands: try again later."""
