"""The file with the names of a model's adapters, which a gateway lists while no engine runs.

The operator mounts one, so that a change of adapters replaces no gateway. A gateway of several models has the
names in its file of models instead.
"""

import asyncio
from pathlib import Path

from mamba_gateway.endpoints.pool import Pool
from mamba_settings.adapter_settings import check_name
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

CHECK_NAMES_SECONDS = 1.0
"""Seconds between two checks of the file."""
MAX_ADAPTER_NAMES = 256
"""Most names that are read: they bound the labels of metrics."""


class AdapterNamesError(ValueError):
    """The file cannot be read or holds another text than names; the message names the file."""


class AdapterNames:
    """Reads the names of a gateway's adapters from a file that has one name a line."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self) -> tuple[str, ...]:
        """Return the names; none while the file is missing. Raises AdapterNamesError."""
        try:
            names = self._path.read_text().split()
            if len(names) > MAX_ADAPTER_NAMES:
                raise ValueError(f"{len(names)} names, and at most {MAX_ADAPTER_NAMES} are served")
            return tuple(map(check_name, names))
        except FileNotFoundError:
            return ()  # a deployment without adapters
        except (OSError, ValueError) as error:
            raise AdapterNamesError(f"--adapter-names-file: {self._path}: {error}") from error


async def follow_names(file: AdapterNames, pool: Pool) -> None:
    """Pass each change of the names in `file` to `pool`, until the task is cancelled."""
    current: tuple[str, ...] | None = None
    reported = ""
    while True:
        try:
            names = file.read()
            if names != current:
                pool.expect_adapters(names)
                log.info("adapters expected", adapters=len(names))
            current, reported = names, ""
        except AdapterNamesError as error:
            if str(error) != reported:
                log.error("adapters not changed", reason=str(error))
            reported = str(error)
        await asyncio.sleep(CHECK_NAMES_SECONDS)
