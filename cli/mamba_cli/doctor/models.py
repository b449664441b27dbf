"""Checks of where models come from: the Hub's cache, the Hub, and the token for gated models."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from mamba_cli.doctor.finding import Finding, broken, note, ok, warning
from mamba_cli.doctor.folders import can_be_written, nearest_existing
from mamba_settings.byte_size import binary_size

SMALL_CACHE = 10 << 30
"""Bytes below which hardly any published hybrid model can be downloaded."""


def cache() -> Finding:
    """Check that a downloaded model can be kept."""
    if find_spec("huggingface_hub") is None:
        return note("model cache", "nothing is downloaded without huggingface-hub")
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE)
    existing = nearest_existing(place)
    cure = "set HF_HOME to a directory that this user can write"
    if not existing.is_dir():
        return broken("model cache", f"{place} lies below {existing}, which is no directory", cure)
    if not can_be_written(existing):
        return broken("model cache", f"{existing} cannot be written by this user", cure)
    free = shutil.disk_usage(existing).free
    text = f"{place}, {binary_size(free)} free"
    if free < SMALL_CACHE:
        return warning("model cache", text, "free some space, or set HF_HOME to a larger disk")
    return ok("model cache", text)


def hub(timeout: float) -> Finding:
    """Ask the Hub for an answer within `timeout` seconds, with the token if there is one."""
    if find_spec("huggingface_hub") is None:
        return note("Hub", "not reachable without huggingface-hub")
    from huggingface_hub import constants, get_token

    address = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        return note("Hub", "HF_HUB_OFFLINE is set: only models in the cache are served")
    try:
        token = get_token()
    except OSError as error:
        return broken(
            "Hub", f"the file with the token cannot be read ({error})", "correct HF_HOME or HF_TOKEN_PATH"
        )
    status = _status(f"{address}/api/whoami-v2", token, timeout)
    if isinstance(status, str):
        return warning(
            "Hub", f"{address}: {status}",
            "check the network, HTTPS_PROXY and HF_ENDPOINT; models in directories need no Hub",
        )  # fmt: skip
    if token and status in (401, 403):
        return broken(
            "Hub", f"{address} does not accept the token",
            "make a new token, then `hf auth login` or set HF_TOKEN: gated models cannot be downloaded",
        )  # fmt: skip
    if status >= 500:
        return warning("Hub", f"{address} answers {status}", "try again later; downloads fail until then")
    return ok("Hub", f"{address}, {'with a token' if token else 'without a token: only open models'}")


def _status(url: str, token: str | None, timeout: float) -> int | str:
    """Return the status of the answer to a GET within `timeout` seconds, or the error in words."""
    import asyncio

    import aiohttp

    async def asked() -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = aiohttp.ClientTimeout(total=timeout)
        async with (
            aiohttp.ClientSession(timeout=limits, trust_env=True) as session,
            session.get(url, headers=headers) as answer,
        ):
            return answer.status

    try:
        return asyncio.run(asked())
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return str(error) or type(error).__name__
