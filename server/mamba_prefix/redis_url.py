"""Addresses of a Redis: one server, with TLS, by a socket, behind Sentinel, or a Cluster.

A password comes with the address, so an address comes from the environment or a file, never from a command
line, and is never shown.
"""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from mamba_prefix.errors import BadRedisUrl

ANSWER_SECONDS = 2.0
"""Longest wait for a connection, and for an answer."""
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
SENTINEL_PORT, REDIS_PORT = 26379, 6379
Client = Any
"""redis.asyncio.Redis or redis.asyncio.cluster.RedisCluster: no common type, the same commands."""


def check_url(url: str) -> str:
    """The address, if it can be one. Raises BadRedisUrl."""
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts.netloc, SENTINEL_PORT)
    except ValueError as error:
        raise BadRedisUrl(f"is not an address: {error}") from None
    if parts.scheme not in SCHEMES:
        raise BadRedisUrl(f"has to begin with one of {', '.join(f'{each}://' for each in SCHEMES)}")
    if any(character.isspace() for character in url):
        raise BadRedisUrl("has a blank in it")
    if parts.scheme == "unix":
        if not parts.path:
            raise BadRedisUrl("names no socket: unix:///path/to/redis.sock")
    elif not all(host for host, _ in hosts):
        raise BadRedisUrl(f"names no host: {parts.scheme}://HOST:PORT")
    path = [part for part in parts.path.split("/") if part]
    if parts.scheme.endswith("+sentinel") and not path:
        raise BadRedisUrl(f"names no master: {parts.scheme}://HOST:PORT,HOST:PORT/MASTER/0")
    database = path[1:] if parts.scheme.endswith("+sentinel") else path
    if parts.scheme != "unix" and (len(database) > 1 or not all(part.isdecimal() for part in database)):
        raise BadRedisUrl("has a database that is not a number")
    if parts.scheme.endswith("+cluster") and database not in ([], ["0"]):
        raise BadRedisUrl("has a database; a cluster has number 0 alone")
    return url


def has_password(url: str) -> bool:
    """Whether a password stands in it."""
    parts = urlsplit(url)
    return bool(parts.password) or "password" in parse_qs(parts.query)


def read_url(path: str) -> str:
    """The address in a file, its only line. Raises BadRedisUrl."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRedisUrl(f"{path} cannot be read: {error}") from None
    if len(lines) != 1:
        raise BadRedisUrl(f"{path} has to hold one address and nothing else")
    return lines[0]


def make_client(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> Client:
    """A client that connects when it is first used and never tries again by itself. Raises BadRedisUrl."""
    check_url(url)
    parts = urlsplit(url)
    options: dict[str, Any] = {
        "socket_timeout": answer_seconds,
        "socket_connect_timeout": answer_seconds,
        "client_name": "mambaserve",
    }
    once = Retry(NoBackoff(), 0)
    if parts.scheme.endswith("+cluster"):
        from redis.asyncio.cluster import RedisCluster

        hosts = ",".join(f"{_bracketed(host)}:{port}" for host, port in _hosts(parts.netloc, REDIS_PORT)[:1])
        plain = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=_login(parts.netloc) + hosts)
        return RedisCluster.from_url(plain.geturl(), cluster_error_retry_attempts=1, **options)
    if parts.scheme.endswith("+sentinel"):
        if parts.scheme.startswith("rediss"):
            options["ssl"] = True
        if parts.password is not None:
            options["password"] = unquote(parts.password)
        if parts.username:
            options["username"] = unquote(parts.username)
        master, *database = [part for part in parts.path.split("/") if part]
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            _hosts(parts.netloc, SENTINEL_PORT),
            sentinel_kwargs={**options, "retry": once},
            db=int(database[0]) if database else 0,
            retry=once,
            **options,
        )
        return sentinel.master_for(unquote(master))
    return redis.Redis.from_url(url, retry=once, **options)


def _login(netloc: str) -> str:
    login, at, _ = netloc.rpartition("@")
    return login + at


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _hosts(netloc: str, port: int) -> list[tuple[str, int]]:
    """Hosts and ports between commas. Raises ValueError."""
    out = []
    for each in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{each}")
        out.append((parts.hostname or "", parts.port or port))
    return out
