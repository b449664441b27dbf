"""The line that tells programs and people that a server is ready. Written by the processes of engine and
gateway once they serve; it never fails: who cannot be told is no reason to serve nobody.
"""

from typing import TextIO

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


def tell_ready(line: str, stream: TextIO) -> None:
    """Write `line` to `stream`, alone and at once. Lost, and said to be so in the log, where that does not
    take it: a full disk, a pipe that nobody reads."""
    try:
        stream.write(line + "\n")
        stream.flush()
    except OSError as error:
        log.warning("ready_line_lost", line=line, reason=error.strerror)
