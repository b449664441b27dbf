"""Counts where the host waits for a CUDA device inside a step: torch says so when it is asked to."""

import logging
import warnings
from typing import TextIO

import torch

SAID = "called a synchronizing CUDA operation"
"""By torch, in its debug mode for synchronisations; waiting for an event, as the stream does, is none."""
log = logging.getLogger(__name__)


class HostSyncs:
    """`count` since it was made; the first is logged. One per process."""

    def __init__(self) -> None:
        self.count = 0
        warnings.filterwarnings("always", message=SAID)
        before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if SAID not in str(message):
                before(message, category, filename, lineno, file, line)
                return
            self.count += 1
            if self.count == 1:
                log.warning(
                    "the host waits for the device at %s:%d: every step pays for it", filename, lineno
                )

        warnings.showwarning = show
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
