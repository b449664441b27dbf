"""`LoadingProgress`: the progress of a loading engine, as a bar on a terminal, else as log lines."""

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
    """Shows how far an engine has loaded; called with each state until the engine is ready.

    `close` restores the terminal.
    """

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._view = LoadingView(console, _log)
        self._terminal = console.is_terminal
        self._bar_visible = False

    def __call__(self, state: EngineState) -> None:
        if state.phase == "ready":
            self.close()
            return
        before = sys.stderr
        self._view.show(
            self._name, EngineReadiness(False, state.stage or "", state.done or 0, state.total or 0)
        )
        if self._terminal and not self._bar_visible:
            self._bar_visible = True
            _redirect_logs(before, sys.stderr)

    def close(self) -> None:
        """Remove the bar and write log lines to the terminal again."""
        if self._bar_visible:
            self._bar_visible = False
            before = sys.stderr
            self._view.finish(self._name)
            self._view.close()
            _redirect_logs(before, sys.stderr)


def _log(_name: str, stage: str, done: int, total: int) -> None:
    log.info("loading", stage=stage, done=done, total=total)


def _redirect_logs(before: object, after: TextIO) -> None:
    """Send log lines through `after`; a live display and direct log lines would overwrite each other."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)
