"""Log lines of every process: JSON when standard error is a file or a pipe (a pod), coloured on a terminal
unless NO_COLOR is set.

Called once at the start of a process. Whatever is in the log context (request id, trace id) goes into each
line. Never logs prompts or answers by itself.
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
MOST_KEPT = 256
"""Beginnings of lines of requests that are kept: models are few, and what clients make up is cut short."""
GATHERED_SECONDS, MOST_GATHERED = 0.02, 256
"""How long lines of requests wait for others to be written with, and how many at most."""


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, but those of requests together: whoever reads a pipe is woken for each write,
    which costs more than a line does."""

    def __init__(self, stream: TextIO, process: str, processors: list[Processor]) -> None:
        super().__init__(stream)
        self.process = process
        self._processors = processors
        self._gathered: list[str] = []

    @property
    def in_use(self) -> bool:
        """Lines that are logged come here; a test may have put itself in between."""
        # Others put in their processors in the place of ours: asked once for lines that are written together.
        if not self._gathered and structlog.get_config()["processors"] is not self._processors:
            return False
        return bool(self._processors) and self._processors[-1] is _wrap

    def gather(self, line: str) -> None:
        """A whole line to write soon."""
        self._gathered.append(line)
        if len(self._gathered) == 1:
            try:
                asyncio.get_running_loop().call_later(GATHERED_SECONDS, self.flush)
            except RuntimeError:
                self.flush()
        elif len(self._gathered) >= MOST_GATHERED:
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """A line of another kind: behind those that were gathered."""
        self._write()
        super().emit(record)

    def flush(self) -> None:
        """Write what is gathered; called at the end of the process, too."""
        self._write()
        super().flush()

    def _write(self) -> None:
        if self._gathered:
            with self.lock or contextlib.nullcontext():
                lines, self._gathered = self._gathered, []
                # Nobody may be left to read the log: that is no reason to fail.
                with contextlib.suppress(OSError, ValueError):
                    self.stream.write("".join(lines))


_json_lines: _LineHandler | None = None
"""Where lines are JSON."""


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
    # Of URLs, wherever in the rendered line: the password is what users put into a URL and forget.
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
    """The line of one request: what `logger`, called `name`, makes of `fields` and `seconds`, at a tenth of
    the price.

    `fields` are those that many requests have in common: their text is kept. `context`: what is in the log
    context. The caller has asked whether the level is wanted.
    """
    handler = _json_lines
    if handler is None or not handler.in_use:
        logger.log(level, "request", seconds=seconds, **fields)
        return
    try:
        key = (name, level, handler.process, *fields, *fields.values())
        parts = _kept.get(key) or _keep(key, fields, logging.getLevelName(level).lower())
        said = "".join([f'"{each}": {_encode(value).decode("ascii")}, ' for each, value in context.items()])
        text = f"{parts[0]}{seconds!r}, {said}{parts[1]}{_timestamp()}{parts[2]}"
    except (TypeError, ValueError):  # text beyond ASCII, which the other renderer escapes, or an odd value
        logger.log(level, "request", seconds=seconds, **fields)
    else:
        handler.gather(_without_passwords(None, "", text))


_kept: dict[tuple[Any, ...], tuple[str, str, str]] = {}
"""What stands before, between and behind what is each request's own, by all that it is made of."""


def _keep(key: tuple[Any, ...], fields: dict[str, Any], level: str) -> tuple[str, str, str]:
    def text(values: dict[str, Any]) -> str:
        return msgspec.json.format(_encode(values), indent=0).decode("ascii")  # spaced as the others

    name, _, process = key[:3]
    before = text({**fields, "event": "request"})[:-1] + ', "seconds": '
    between = text({"level": level, "logger": name})[1:-1] + ', "timestamp": "'
    behind = '", ' + text({"process": process})[1:] + "\n"
    if len(_kept) >= MOST_KEPT:
        _kept.clear()  # those that come again are soon back
    _kept[key] = before, between, behind
    return _kept[key]


def get_logger(name: str) -> Logger:
    """A logger; `name` is the module's."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


class LogContext:
    """Around a block; what is already in the context stays in it."""

    __slots__ = ("_token", "_values")

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._token: Token[dict[str, Any]] | None = None

    def __enter__(self) -> None:
        around = _context.get()
        self._token = _context.set(around | self._values if around else self._values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _context.reset(self._token)


def log_context(**values: Any) -> LogContext:
    """Put values into every line logged inside, in this task and those it starts."""
    return LogContext(values)


def _merge_context(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in _context.get().items():
        event.setdefault(name, value)
    return event


_second = (-1, "")
"""The last second that was written, and how."""


def _timestamp() -> str:
    global _second
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    if seconds != _second[0]:
        _second = (seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)))
    return f"{_second[1]}.{nanoseconds // 1000:06d}Z"
