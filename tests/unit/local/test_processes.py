"""Child processes: what they wrote, how they end, and that none is left behind."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mamba_cli.local.processes import Processes
from mamba_cli.local.unit import Command

End = tuple[str, int | None, str]


class Children:
    """The processes of one test; `ends` is what was reported, in order."""

    def __init__(self, logs: Path) -> None:
        self.ends: list[End] = []
        self._news = asyncio.Event()
        self.processes = Processes(logs, self._ended)

    def _ended(self, *end: object) -> None:
        self.ends.append(end)  # type: ignore[arg-type]
        self._news.set()

    async def run(self, name: str, code: str, **environment: str) -> None:
        await self.processes.start(name, Command((sys.executable, "-S", "-c", code), environment))

    async def ended(self, count: int = 1) -> list[End]:
        async with asyncio.timeout(20):
            while len(self.ends) < count:
                self._news.clear()
                await self._news.wait()
        return self.ends

    async def wrote(self, name: str, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in "".join(self.processes.tail(name)):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    found = Children(tmp_path)
    yield found
    await found.processes.close()


WAIT = "import time; print('up', flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"


async def test_both_streams_go_to_the_log_and_the_code_is_reported(children: Children) -> None:
    await children.run("one", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert await children.ended() == [("one", 7, "")]
    assert sorted(children.processes.tail("one")) == ["err", "out"]


async def test_a_child_reads_nothing_from_the_terminal(children: Children) -> None:
    await children.run("one", "import sys; sys.exit(len(sys.stdin.read()))")
    assert await children.ended() == [("one", 0, "")]


async def test_the_environment_is_that_of_the_parent_with_the_child_s_own_over_it(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_PARENT", "1")
    monkeypatch.setenv("OF_BOTH", "2")
    await children.run("one", "import os; print(os.environ['OF_PARENT'], os.environ['OF_BOTH'])", OF_BOTH="3")
    await children.ended()
    assert children.processes.tail("one") == ["1 3"]


@pytest.mark.parametrize(
    ("argv", "environment", "words"),
    [
        (["/nowhere/python"], {}, "No such file or directory"),
        ([os.devnull], {}, "Permission denied"),
        ([sys.executable, "a\0b"], {}, "embedded null byte"),
        ([sys.executable], {"A": "a\0b"}, "embedded null byte"),
        ([sys.executable], {"A=B": "x"}, "illegal environment variable name"),
    ],
)
async def test_what_cannot_start_is_reported_like_an_end(
    children: Children, argv: list[str], environment: dict[str, str], words: str
) -> None:
    await children.processes.start("one", Command(tuple(argv), environment))
    [(name, code, reason)] = children.ends
    assert (name, code) == ("one", None)
    assert words in reason


async def test_logs_that_cannot_be_written_are_a_start_that_failed(tmp_path: Path) -> None:
    children = Children(tmp_path / "gone")
    await children.run("one", WAIT)
    [(_, code, reason)] = children.ends
    assert code is None
    assert "gone/one.log" in reason
    assert children.processes.tail("one") == []


async def test_a_signal_is_reported_as_the_negative_of_its_number(children: Children) -> None:
    await children.run("one", WAIT)
    await children.wrote("one", "up")
    children.processes.send("one", signal.SIGTERM)
    assert await children.ended() == [("one", -signal.SIGTERM, "")]


async def test_a_signal_to_one_that_is_gone_or_never_was_does_nothing(children: Children) -> None:
    await children.run("one", "")
    await children.ended()
    children.processes.send("one", signal.SIGKILL)
    children.processes.send("two", signal.SIGKILL)
    assert len(children.ends) == 1


async def test_a_child_has_a_session_of_its_own_so_that_ctrl_c_reaches_only_the_parent(
    children: Children,
) -> None:
    await children.run("one", "import os; print(os.getsid(0) == os.getpid())")
    await children.ended()
    assert children.processes.tail("one") == ["True"]


async def test_closing_kills_and_reaps_even_the_deaf(children: Children) -> None:
    for name in ("one", "two"):
        await children.run(name, DEAF)
        await children.wrote(name, "up")
    began = time.monotonic()
    await children.processes.close()
    assert time.monotonic() - began < 10
    assert sorted(children.ends) == [("one", -signal.SIGKILL, ""), ("two", -signal.SIGKILL, "")]
    await children.processes.close()


async def test_the_log_goes_on_when_a_child_is_started_again_and_its_tail_begins_anew(
    children: Children,
) -> None:
    for number in (1, 2):
        await children.run("one", f"print('life {number}')")
        await children.ended(number)
    assert children.processes.tail("one") == ["life 2"]
    assert children.processes.log("one").read_text() == "life 1\nlife 2\n"


async def test_lines_that_only_inform_are_not_a_child_s_last_words(children: Children) -> None:
    said = [
        '{"level": "info", "event": "request"}',
        '{"level": "error", "event": "lost"}',
        "{odd",
        "error: x",
    ]
    await children.run("one", f"print({chr(10).join(said)!r})")
    await children.ended()
    assert children.processes.tail("one") == said[1:]


async def test_a_log_without_room_is_known(children: Children, tmp_path: Path) -> None:
    (tmp_path / "one.log").symlink_to("/dev/full")
    assert children.processes.full("one")
    assert not children.processes.full("two")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", []),
        (b"\n\n  \n", []),
        (b"a\n\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"caf\xe9 \xff\n", ["caf\ufffd \ufffd"]),
        (b"".join(b"line %d\n" % n for n in range(100)), [f"line {n}" for n in range(88, 100)]),
    ],
    ids=["empty", "blank", "no end", "windows", "binary", "long"],
)
def test_the_tail_of_a_log_is_its_last_lines_with_words(
    tmp_path: Path, content: bytes, shown: list[str]
) -> None:
    (tmp_path / "one.log").write_bytes(content)
    assert Processes(tmp_path, lambda *_: None).tail("one") == shown


def test_the_tail_of_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    served = b'{"level": "info", "event": "request"}\n'
    (tmp_path / "one.log").write_bytes(served * 1000 + b"error: x\n")
    assert Processes(tmp_path, lambda *_: None).tail("one") == ["error: x"]


def test_a_log_of_one_endless_line_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_bytes(b"x" * 5_000_000)
    [line] = Processes(tmp_path, lambda *_: None).tail("one")
    assert 0 < len(line) < 100_000
