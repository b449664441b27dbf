"""Log lines of every process: JSON to a file or a pipe (a pod), coloured on a terminal without NO_COLOR.

Called once at the start of a process. All values in the log context (request id, trace id) go into each line.
This module never logs prompts or answers by itself.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys
import time
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_PASSWORD = re.compile(r"(://[^\s/@:\"']*:)[^\s/@\"']+@")
Logger = structlog.stdlib.BoundLogger
_wrap = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
_encode = msgspec.json.Encoder(enc_hook=str).encode
_context: ContextVar[dict[str, Any]] = ContextVar("log_context", default={})  # noqa: B039 - never changed in place
MAX_TEMPLATES = 256
"""Maximum number of cached line templates: models are few, and names made up by clients are cut short."""
FLUSH_SECONDS = 0.02
"""Seconds for which the line of a request waits, so that several lines are written together."""
MAX_PENDING_LINES = 256
"""Maximum number of waiting lines."""


class _LineHandler(logging.StreamHandler[TextIO]):
    """A handler that writes each line at once, except lines of requests, which it writes together.

    The reader of a pipe is woken for each write, which costs more than a line does.
    """

    def __init__(self, stream: TextIO, process: str, processors: list[Processor]) -> None:
        super().__init__(stream)
        self.process = process
        self._processors = processors
        self._gathered: list[str] = []

    @property
    def in_use(self) -> bool:
        """Whether log lines reach this handler; a test may have replaced it."""
        # Tests replace our processors. Checked once for all lines that are written together.
        if not self._gathered and structlog.get_config()["processors"] is not self._processors:
            return False
        return bool(self._processors) and self._processors[-1] is _wrap

    def gather(self, line: str) -> None:
        """Take a complete line to be written soon."""
        self._gathered.append(line)
        if len(self._gathered) == 1:
            try:
                asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
            except RuntimeError:
                self.flush()
        elif len(self._gathered) >= MAX_PENDING_LINES:
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record that `gather` did not take, after the pending lines."""
        self._write()
        super().emit(record)

    def flush(self) -> None:
        """Write the pending lines; also called at the end of the process."""
        self._write()
        super().flush()

    def _write(self) -> None:
        if self._gathered:
            with self.lock or contextlib.nullcontext():
                lines, self._gathered = self._gathered, []
                # The reader of the log may be gone, which is no reason to fail.
                with contextlib.suppress(OSError, ValueError):
                    self.stream.write("".join(lines))


_json_lines: _LineHandler | None = None
"""Handler of JSON lines; None if lines are not JSON."""


def set_up_logs(
    *, level: str = "info", process: str, stream: TextIO | None = None, json: bool | None = None
) -> None:
    """Send all log lines of the process, including those of libraries, to `stream` (None = standard error).

    `process` is the name of the process in each line. With `json` = None, lines are JSON unless the stream is
    a terminal.
    """
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json

    def name_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    shared: list[Processor] = [
        _merge_context,
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
    processors: list[Processor] = [
        structlog.stdlib.filter_by_level,
        *shared,
        structlog.processors.StackInfoRenderer(),
        _wrap,
    ]
    handler = _LineHandler(stream, process, processors)
    global _json_lines
    _json_lines = handler if as_json else None
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=processors,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _without_passwords(_: WrappedLogger, __: str, line: EventDict | str) -> str:
    # Users put passwords into URLs and forget them; a URL may stand anywhere in the rendered line.
    text = str(line)
    return _PASSWORD.sub(r"\1***@", text) if "://" in text else text


def log_request(
    logger: Logger,
    name: str,
    level: int,
    fields: dict[str, Any],
    seconds: float,
    context: dict[str, Any],
) -> None:
    """Log one request as `logger`, named `name`, would log it, at a tenth of the cost.

    Args:
        logger: the logger.
        name: its name.
        level: level of the line, which the caller has checked to be enabled.
        fields: values that many requests have in common; their text is cached.
        seconds: duration of the request.
        context: the log context.
    """
    handler = _json_lines
    if handler is None or not handler.in_use:
        logger.log(level, "request", seconds=seconds, **fields)
        return
    try:
        key = (name, level, handler.process, *fields, *fields.values())
        parts = _templates.get(key) or _make_template(key, fields, logging.getLevelName(level).lower())
        extra = "".join(
            [f'"{field}": {_encode(value).decode("ascii")}, ' for field, value in context.items()]
        )
        text = f"{parts[0]}{seconds!r}, {extra}{parts[1]}{_timestamp()}{parts[2]}"
    except (
        TypeError,
        ValueError,
    ):  # text beyond ASCII, which the other renderer escapes, or an unusual value
        logger.log(level, "request", seconds=seconds, **fields)
    else:
        handler.gather(_without_passwords(None, "", text))


_templates: dict[tuple[Any, ...], tuple[str, str, str]] = {}
"""Parts of a line before, between and after the values of one request, by the fields they consist of."""


def _make_template(key: tuple[Any, ...], fields: dict[str, Any], level: str) -> tuple[str, str, str]:
    def text(values: dict[str, Any]) -> str:
        return msgspec.json.format(_encode(values), indent=0).decode("ascii")  # same spacing as other lines

    name, _, process = key[:3]
    before = text({**fields, "event": "request"})[:-1] + ', "seconds": '
    between = text({"level": level, "logger": name})[1:-1] + ', "timestamp": "'
    behind = '", ' + text({"process": process})[1:] + "\n"
    if len(_templates) >= MAX_TEMPLATES:
        _templates.clear()  # recurring ones are soon cached again
    _templates[key] = before, between, behind
    return _templates[key]


def get_logger(name: str) -> Logger:
    """Return a logger; `name` is the module's."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


class LogContext:
    """Log context of a block, added to the context around it."""

    __slots__ = ("_token", "_values")

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._token: Token[dict[str, Any]] | None = None

    def __enter__(self) -> None:
        outer = _context.get()
        self._token = _context.set(outer | self._values if outer else self._values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _context.reset(self._token)


def log_context(**values: Any) -> LogContext:
    """Return a block that adds `values` to each log line of this task, and of tasks that it starts there."""
    return LogContext(values)


def _merge_context(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in _context.get().items():
        event.setdefault(name, value)
    return event


_second = (-1, "")
"""The last formatted second and its text."""


def _timestamp() -> str:
    global _second
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    if seconds != _second[0]:
        _second = (seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)))
    return f"{_second[1]}.{nanoseconds // 1000:06d}Z"
