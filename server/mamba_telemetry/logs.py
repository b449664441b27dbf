"""Log set-up for every process: one line per event on standard error, readable on a terminal, JSON elsewhere.

Each command calls `configure` once, before it starts anything. Prompt text is never logged.
"""

import logging
import sys
from typing import TextIO

import structlog


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send structlog events of at least `level` (debug, info, warning, error) to `stream`, by default stderr.

    The standard library's loggers (uvicorn, aiohttp) write warnings and errors through the same renderer.
    """
    out = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = out.isatty()
    final: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=False)]
    )
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
