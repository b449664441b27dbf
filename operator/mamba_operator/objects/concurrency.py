"""`run_concurrently`: runs the same work for many objects; a failure for one does not stop the others."""

import asyncio
from collections.abc import Awaitable, Mapping

import structlog

from mamba_operator.objects.manifest import Key

log = structlog.get_logger(__name__)


async def run_concurrently(work: Mapping[Key, Awaitable[None]], broken: str) -> None:
    """Run all of the work. A failure is logged as event `broken`, with the key and the error."""
    results = await asyncio.gather(*work.values(), return_exceptions=True)
    for key, error in zip(work, results, strict=True):
        if isinstance(error, Exception):
            log.error(broken, key=str(key), error=repr(error))
