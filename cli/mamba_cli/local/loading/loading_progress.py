"""How far `mambaserve serve` is while it loads: a bar on a terminal, log lines elsewhere."""

import logging
import sys
from typing import TextIO

from rich.console import Console

from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import EngineReadiness
from mamba_server.api.engine_link.engine_state import EngineState
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


class LoadingProgress:
    """Told of each state until the engine is ready. `close` gives the terminal back, however it ended."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._view = LoadingView(console, _log)
        self._terminal = console.is_terminal
        self._shown = False

    def __call__(self, state: EngineState) -> None:
        if state.phase == "ready":
            self.close()
            return
        before = sys.stderr
        self._view.show(
            self._name, EngineReadiness(False, state.stage or "", state.done or 0, state.total or 0)
        )
        if self._terminal and not self._shown:
            self._shown = True
            _redirect_logs(before, sys.stderr)

    def close(self) -> None:
        """The bar goes; log lines are written as before."""
        if self._shown:
            self._shown = False
            before = sys.stderr
            self._view.finish(self._name)
            self._view.close()
            _redirect_logs(before, sys.stderr)


def _log(_name: str, stage: str, done: int, total: int) -> None:
    log.info("loading", stage=stage, done=done, total=total)


def _redirect_logs(before: object, after: TextIO) -> None:
    """Log lines go through the live display while there is one, or both would write over each other."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)
