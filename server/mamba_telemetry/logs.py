"""Log lines of every process: JSON when standard error is a file or a pipe (a pod), coloured on a terminal
unless NO_COLOR is set.

Called once at the start of a process. Whatever is in the log context (request id, trace id) goes into each
line. Never logs prompts or answers by itself.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_PASSWORD = re.compile(r"(://[^\s/@:\"']*:)[^\s/@\"']+@")
Logger = structlog.stdlib.BoundLogger


def set_up_logs(
    *, level: str = "info", process: str, stream: TextIO | None = None, json: bool | None = None
) -> None:
    """Send all log lines, those of libraries too, to `stream` (standard error). json=None: by the stream."""
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json

    def name_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_process,
    ]
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        colours = stream.isatty() and not os.environ.get("NO_COLOR")
        # The renderer's own tracebacks show the values of variables: prompts and keys.
        plain = structlog.dev.plain_traceback
        last.append(structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain))
    last.append(_without_passwords)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _without_passwords(_: WrappedLogger, __: str, line: EventDict | str) -> str:
    # Of URLs, wherever in the rendered line: the password is what users put into a URL and forget.
    return _PASSWORD.sub(r"\1***@", str(line))


def get_logger(name: str) -> Logger:
    """A logger; `name` is the module's."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Put values into every line logged inside, in this task and those it starts."""
    with structlog.contextvars.bound_contextvars(**values):
        yield
