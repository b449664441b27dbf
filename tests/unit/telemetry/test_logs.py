"""Log lines: one JSON object each when nobody looks, with the context of the request."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from mamba_telemetry.logs import (
    FLUSH_SECONDS,
    MAX_PENDING_LINES,
    MAX_TEMPLATES,
    get_logger,
    log_context,
    log_request,
    set_up_logs,
)
from virtual_time import in_virtual_time


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_its_context(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    with log_context(request_id="r1", trace_id="t1"):
        get_logger("x").info("request", status=200)
    (line,) = lines(stream)
    assert line["event"] == "request"
    assert (line["request_id"], line["trace_id"], line["status"]) == ("r1", "t1", 200)
    assert (line["level"], line["logger"], line["process"]) == ("info", "x", "api")
    assert str(line["timestamp"]).endswith("Z")


CONTEXT = {"request_id": "r1", "trace_id": None}
SECONDS = 0.0123
FIELDS = {"route": "/v1/completions", "status": 200, "model": "caf\u00e9 \u2028 m"}


def of_request(fields: dict[str, object] = FIELDS) -> None:
    with log_context(**CONTEXT):
        log_request(get_logger("edge"), "edge", logging.WARNING, fields, SECONDS, CONTEXT)


@pytest.mark.parametrize("model", ["m", 'a "quoted" \\ name\n', "caf\u00e9 \u2028 m", None])
def test_the_line_of_a_request_says_what_any_other_line_would(stream: io.StringIO, model: str | None) -> None:
    set_up_logs(process="gateway", stream=stream)
    fields: dict[str, object] = {**FIELDS, "model": model}
    with log_context(**CONTEXT):
        get_logger("edge").warning("request", seconds=SECONDS, **fields)
    of_request(fields)
    of_request(fields)  # of text that is kept by now
    assert '"status": 200, ' in stream.getvalue().splitlines()[1]
    usual, quick, again = lines(stream)
    for line in (quick, again):
        assert len(str(line.pop("timestamp"))) == len(str(usual["timestamp"]))
        assert line == {name: value for name, value in usual.items() if name != "timestamp"}


def test_lines_of_requests_with_other_fields_are_other_lines(stream: io.StringIO) -> None:
    set_up_logs(process="gateway", stream=stream)
    made: list[dict[str, object]] = [{"model": f"m{number}"} for number in range(2 * MAX_TEMPLATES)]
    first_two: list[dict[str, object]] = [{"key": "a", "model": "b"}, {"model": "a", "key": "b"}]
    for fields in (*first_two, *made):
        of_request(fields)
    logging.getLogger().handlers[0].flush()
    first, second, *others = lines(stream)
    assert (first["key"], first["model"], second["key"], second["model"]) == ("a", "b", "b", "a")
    assert [line["model"] for line in others] == [fields["model"] for fields in made]


def test_on_a_terminal_it_is_a_line_like_the_others(stream: io.StringIO) -> None:
    set_up_logs(process="gateway", stream=stream, json=False)
    of_request()
    assert "request_id" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@in_virtual_time
async def test_lines_of_requests_are_written_together_and_before_whatever_is_logged_then() -> None:
    class Counted(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    root = logging.getLogger()
    handlers, level, stream = root.handlers[:], root.level, Counted()
    before = structlog.get_config()
    try:
        set_up_logs(process="gateway", stream=stream)
        for number in range(5):
            of_request({"number": number})
        assert stream.getvalue() == ""
        await asyncio.sleep(FLUSH_SECONDS)
        assert [line["number"] for line in lines(stream)] == [0, 1, 2, 3, 4]
        assert stream.writes == 1
        of_request({"number": 5})
        get_logger("x").warning("other", number=6)
        assert [line["number"] for line in lines(stream)[5:]] == [5, 6]
        of_request({"number": 7})
        logging.getLogger().handlers[0].flush()  # as at the end of a process
        assert lines(stream)[-1]["number"] == 7
        for number in range(MAX_PENDING_LINES):
            of_request({"number": number})
        assert len(lines(stream)) == 8 + MAX_PENDING_LINES
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.configure(**before)


def test_no_password_of_a_url_is_in_the_line_of_a_request(stream: io.StringIO) -> None:
    set_up_logs(process="gateway", stream=stream)
    of_request({"model": "redis://me:hidden@host/1"})
    assert "hidden" not in stream.getvalue()
    assert "redis://me:***@host/1" in stream.getvalue()


def test_a_request_is_logged_whatever_its_fields_hold(stream: io.StringIO) -> None:
    set_up_logs(process="gateway", stream=stream)
    of_request({"model": "\ud800", "odd": {1: object}})
    assert lines(stream)[0]["event"] == "request"


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_colours_unless_they_are_not_wanted(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    set_up_logs(process="api", stream=stream)
    get_logger("x").warning("event")
    assert ("\x1b[" in stream.getvalue()) is not plain


def test_the_context_ends_with_its_block(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    with log_context(request_id="r1"):
        pass
    get_logger("x").info("later")
    assert "request_id" not in lines(stream)[0]


def test_lines_of_libraries_have_the_same_form(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    with log_context(request_id="r2"):
        logging.getLogger("some.library").warning("odd %s", "thing")
    (line,) = lines(stream)
    assert (line["event"], line["request_id"], line["level"]) == ("odd thing", "r2", "warning")


def test_an_exception_stays_on_its_line(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        get_logger("x").error("failed", exc_info=error)
    (line,) = lines(stream)
    assert "ValueError: broken" in str(line["exception"])


def test_lines_below_the_level_are_left_out(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream, level="warning")
    get_logger("x").info("quiet")
    get_logger("x").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_a_terminal_gets_text(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream, json=False)
    get_logger("x").info("hello", count=1)
    assert "hello" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_setting_up_twice_does_not_double_lines(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    set_up_logs(process="api", stream=stream)
    get_logger("x").info("once")
    assert len(lines(stream)) == 1


async def test_tasks_side_by_side_keep_their_own_context(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)

    async def request(number: int) -> None:
        with log_context(request_id=f"r{number}"):
            await asyncio.sleep(0)
            get_logger("x").info("done", number=number)

    await asyncio.gather(*(request(number) for number in range(5)))
    assert [line["request_id"] == f"r{line['number']}" for line in lines(stream)] == [True] * 5


def test_after_a_failure_the_outer_context_is_back(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    log = get_logger("x")

    def fail() -> None:
        with log_context(request_id="inner", more=1):
            log.info("inside")
            raise RuntimeError

    with log_context(request_id="outer"):
        with pytest.raises(RuntimeError):
            fail()
        log.info("outside")
    log.info("after")
    assert [line.get("request_id") for line in lines(stream)] == ["inner", "outer", None]
    assert "more" not in lines(stream)[1]


@pytest.mark.parametrize(
    "text", ["two\nlines", "\u2028 \x00 \x1b[31m red", '"quoted" {json}', "\u4e16\U0001f389"]
)
def test_nothing_a_client_sends_breaks_a_line(stream: io.StringIO, text: str) -> None:
    set_up_logs(process="api", stream=stream)
    get_logger("x").info("request", path=text)
    logging.getLogger("library").warning("said %s", text)
    first, second = lines(stream)
    assert first["path"] == text
    assert second["event"] == f"said {text}"


def test_values_that_are_no_json_are_told_as_text(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    get_logger("x").info("odd", where=Path("/a/b"), raw=b"\xff", kinds={1})
    [line] = lines(stream)
    assert (line["where"], line["kinds"]) == ("/a/b", "{1}")


def test_a_name_for_the_process_that_a_line_brings_itself_stays(stream: io.StringIO) -> None:
    set_up_logs(process="api", stream=stream)
    get_logger("x").info("from afar", process="engine")
    assert lines(stream)[0]["process"] == "engine"


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_each_level_shows_itself_and_what_is_worse(stream: io.StringIO, level: str, shown: int) -> None:
    set_up_logs(level=level, process="api", stream=stream)
    log = get_logger("x")
    for say in (log.debug, log.info, log.warning, log.error):
        say("said")
    assert len(lines(stream)) == shown


@pytest.mark.parametrize("json", [True, False], ids=["file", "terminal"])
def test_no_value_of_a_failed_function_is_shown(stream: io.StringIO, json: bool) -> None:
    set_up_logs(level="debug", process="api", stream=stream, json=json)

    def answer(prompt: str) -> None:
        raise RuntimeError("broken")

    try:
        answer("what a client " + "said")
    except RuntimeError as error:
        get_logger("x").error("unexpected_error", exc_info=error)
        logging.getLogger("library").error("failed", exc_info=error)
    assert stream.getvalue().count("RuntimeError: broken") == 2
    assert "what a client said" not in stream.getvalue()


@pytest.mark.parametrize("json", [True, False], ids=["file", "terminal"])
def test_no_password_of_a_url_is_shown(stream: io.StringIO, json: bool) -> None:
    set_up_logs(process="api", stream=stream, json=json)
    get_logger("x").info("connected", url="redis://user:secret@host:1/0", more=["http://:secret@a/b?c=d:e@f"])
    logging.getLogger("library").warning("lost %s", "amqp://u:secret@host")
    get_logger("x").info("plain", url="http://host:8000/v1", mail="a@b")
    assert "secret" not in stream.getvalue()
    assert "redis://user:***@host:1/0" in stream.getvalue()
    assert "http://host:8000/v1" in stream.getvalue()
