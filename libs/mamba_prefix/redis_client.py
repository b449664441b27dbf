"""Makes the client for an address of a Redis, which connects when first used, waits briefly, tries once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from mamba_api.names import authority
from mamba_prefix.redis_url import REDIS_PORT, SENTINEL_PORT, check_url, hosts_of

ANSWER_SECONDS = 2.0
"""Longest wait for a connection, and for an answer, in seconds."""
Client = Any
"""A redis.asyncio.Redis or redis.asyncio.cluster.RedisCluster, which have no common type."""


def make_client(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> Client:
    """Return a client for the address. Raises BadRedisUrl."""
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
        netloc = f"{_login(parts.netloc)}{authority(host, port)}"
        plain = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=netloc)
        return RedisCluster.from_url(plain.geturl(), retry=once, **options)
    if parts.scheme.endswith("+sentinel"):
        return _behind_sentinels(parts, {**options, "retry": once})
    return redis.Redis.from_url(url, retry=once, **options)


@contextlib.asynccontextmanager
async def answers_within(seconds: float) -> AsyncIterator[None]:
    """Limit the calls of a client in the block to `seconds` together. Raises TimeoutError.

    The client itself limits only each silence, and an answer may come byte by byte. A cancellation of the
    block always ends the block with CancelledError: the client sends within `asyncio.wait_for`, which before
    Python 3.12 answers a cancellation with the result if that came in the same turn of the loop. A task that
    lost its only cancellation would go on for ever, and whoever ends the task would wait for it.
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError


def _behind_sentinels(parts: SplitResult, options: dict[str, Any]) -> Client:
    hosts = hosts_of(parts.netloc, SENTINEL_PORT)
    master, *database = [part for part in parts.path.split("/") if part]
    # Login, database and query are parsed as those of one server.
    scheme, login = parts.scheme.partition("+")[0], _login(parts.netloc)
    server_parts = parts._replace(scheme=scheme, netloc=f"{login}one", path="/".join(("", *database)))
    options |= parse_url(server_parts.geturl())
    del options["host"]
    options["ssl"] = options.pop("connection_class", None) is not None
    number = options.pop("db", 0)
    sentinel = Sentinel(hosts, sentinel_kwargs=options, db=number, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(unquote(master))


def _login(netloc: str) -> str:
    login, at, _ = netloc.rpartition("@")
    return login + at
