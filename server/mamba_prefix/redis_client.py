"""The client for an address of a Redis: connects when first used, waits little, and tries once."""

from typing import Any
from urllib.parse import unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from mamba_prefix.redis_url import REDIS_PORT, SENTINEL_PORT, check_url, hosts_of

ANSWER_SECONDS = 2.0
"""Longest wait for a connection, and for an answer."""
Client = Any
"""redis.asyncio.Redis or redis.asyncio.cluster.RedisCluster: no common type, the same commands."""


def make_client(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> Client:
    """A client for the address. Raises BadRedisUrl."""
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

        host, port = hosts_of(parts.netloc, REDIS_PORT)[0]
        netloc = f"{_login(parts.netloc)}{_bracketed(host)}:{port}"
        plain = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=netloc)
        return RedisCluster.from_url(plain.geturl(), retry=once, **options)
    if parts.scheme.endswith("+sentinel"):
        if parts.scheme.startswith("rediss"):
            options["ssl"] = True
        if parts.password is not None:
            options["password"] = unquote(parts.password)
        if parts.username:
            options["username"] = unquote(parts.username)
        master, *database = [part for part in parts.path.split("/") if part]
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            hosts_of(parts.netloc, SENTINEL_PORT),
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
