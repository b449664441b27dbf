"""The engine process from the client's side, with small programs in its place: starts, deaths, ends."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from eventually import until
from mamba_edge.errors import NotReady
from mamba_server import wire
from mamba_server.api.engine_link import engine_client
from mamba_server.api.engine_link.engine_client import EngineClient
from mamba_server.api.engine_link.engine_process import EngineProcess
from mamba_server.api.engine_link.engine_state import MAX_FAILED_STARTS
from mamba_server.api.engine_link.inbox import Inbox
from mamba_server.api.requests.errors import EngineLost, EngineStartFailed

SPEAKER = """
import sys, time, msgspec, zmq
to, source = sys.argv[4], sys.argv[6]
context = zmq.Context()
out, inbound = context.socket(zmq.PUSH), context.socket(zmq.PULL)
out.connect(source); inbound.connect(to)
def say(kind, **fields): out.send(msgspec.msgpack.encode({"type": kind, **fields}))
def ready(): say("ready", vocab_size=9, max_model_len=9, eos_token_ids=[], plan={})
"""


def shell(script: str) -> tuple[str, ...]:
    """Return an engine that is a shell script; the sockets' addresses are its further arguments."""
    return ("/bin/sh", "-c", script, "engine")


def speaker(script: str) -> tuple[str, ...]:
    """Return an engine that can `say` messages and hear `inbound`."""
    return (sys.executable, "-c", SPEAKER + script)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between starts, which have tests of their own."""
    monkeypatch.setattr(engine_client, "backoff", lambda deaths, jitter: 0.001)
    monkeypatch.setattr(engine_client, "LAST_MESSAGES_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the parent folder of the sockets' folders."""
    # Not tmp_path: the path of a socket has a hundred characters at most.
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "mkdtemp", partial(tempfile.mkdtemp, dir=short))
        yield Path(short)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Life:
    """A client whose supervision runs."""

    def __init__(self, command: tuple[str, ...], **options: Any) -> None:
        self.client = EngineClient(command=command, **options)
        self.run = asyncio.create_task(self.client.run("{}"))


@pytest.fixture
async def life() -> AsyncIterator[Any]:
    made: list[Life] = []

    def start(command: tuple[str, ...], **options: Any) -> Life:
        made.append(Life(command, **options))
        return made[-1]

    yield start
    for one in made:
        await one.client.stop(grace=0.05)
        await asyncio.gather(one.run, return_exceptions=True)


async def test_an_engine_that_cannot_be_started_is_told_at_once(folders: Path) -> None:
    with pytest.raises(EngineStartFailed, match=r"cannot be started: .*no/such/engine"):
        await EngineClient(command=("/no/such/engine",)).run("{}")
    assert names_in(folders) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 7", "exit code 7"), ("kill -9 $$", "killed by signal 9"), ("exit 0", "code 0")],
)
async def test_an_engine_that_never_comes_up_is_given_up_after_some_starts(
    script: str, said: str, tmp_path: Path, folders: Path
) -> None:
    starts = tmp_path / "starts"
    client = EngineClient(command=shell(f"echo x >> {starts}; {script}"))
    with pytest.raises(EngineStartFailed, match=said) as caught:
        await client.run("{}")
    assert f"{MAX_FAILED_STARTS} starts in a row failed" in str(caught.value)
    assert caught.value.exit_code == 1
    assert len(starts.read_text().split()) == MAX_FAILED_STARTS
    assert client.state.phase == "failed"
    assert names_in(folders) == []


async def test_the_settings_and_both_addresses_are_its_arguments(tmp_path: Path, folders: Path) -> None:
    seen = tmp_path / "seen"
    with pytest.raises(EngineStartFailed):
        await EngineClient(command=shell(f'echo "$@" > {seen}; exit 1')).run('{"model":"m"}')
    words = seen.read_text().split()
    assert words[:2] == ["--settings", '{"model":"m"}']
    assert [words[2], words[4]] == ["--to-engine", "--from-engine"]
    assert all(word.startswith(f"ipc://{folders}/") for word in (words[3], words[5]))


async def test_a_fatal_word_before_ready_ends_it_with_the_engine_s_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "FATAL_EXIT_SECONDS", 0.05)
    client = EngineClient(command=speaker('say("fatal", message="needs 12 GiB", exit_code=3); time.sleep(9)'))
    with pytest.raises(EngineStartFailed, match="needs 12 GiB") as caught:
        await client.run("{}")
    assert caught.value.exit_code == 3
    assert client.state.phase == "failed"


async def test_a_ready_engine_that_dies_is_started_again_and_who_waited_is_told(life: Any) -> None:
    one = life(speaker("ready(); inbound.recv(); sys.exit(5)"))
    client = one.client
    await until(lambda: client.state.phase == "ready")
    inbox = Inbox()
    request = wire.AddRequest("a", wire.TokenIds([1]), wire.SamplingParams(max_tokens=1))
    client.submit([request], inbox)
    with pytest.raises(EngineLost, match="exit code 5"):
        await asyncio.wait_for(inbox.take(), 60)
    with pytest.raises(NotReady, match="exit code 5"):
        client.submit([request], inbox)
    assert client.open == 0
    await until(lambda: client.state.phase == "ready")
    assert client.restarts == 1


async def test_a_foreign_message_ends_that_engine(life: Any) -> None:
    one = life(speaker('ready(); inbound.recv(); out.send(b"\\x93junk"); time.sleep(60)'))
    await until(lambda: one.client.state.phase == "ready")
    call = asyncio.create_task(one.client.admin("plan", {}))
    with pytest.raises(EngineLost):
        await asyncio.wait_for(call, 60)
    await until(lambda: one.client.restarts == 1)


async def test_what_is_sent_before_the_engine_hears_arrives_once_it_does(life: Any) -> None:
    deaf = SPEAKER.replace("; inbound.connect(to)", "")
    hears = "ready(); time.sleep(0.3); inbound.connect(to); inbound.recv(); out.send(b'x'); time.sleep(60)"
    one = life((sys.executable, "-c", deaf + hears))
    await until(lambda: one.client.state.phase == "ready")
    with pytest.raises(EngineLost):
        await asyncio.wait_for(one.client.admin("plan", {}), 60)


async def test_an_engine_that_falls_silent_is_replaced_and_called_hung(life: Any) -> None:
    one = life(speaker("ready(); time.sleep(60)"), silence=0.1)
    await until(lambda: one.client.state.phase == "ready")
    call = asyncio.create_task(one.client.admin("plan", {}))
    with pytest.raises(EngineLost, match="hung"):
        await asyncio.wait_for(call, 60)
    await until(lambda: one.client.restarts == 1)


async def test_silence_while_it_loads_is_no_hang(life: Any) -> None:
    one = life(speaker("time.sleep(0.4); ready(); time.sleep(60)"), silence=0.05)
    await asyncio.sleep(0.3)
    assert (one.client.state.phase, one.client.restarts) == ("loading", 0)


async def test_what_it_said_just_before_its_end_still_counts(life: Any) -> None:
    script = (
        'ready(); inbound.recv(); delta = {"request_id": "a", "index": 0, "token_ids": [5]}; '
        'say("out", deltas=[delta]); out.close(); inbound.close(); context.term(); sys.exit(4)'
    )
    one = life(speaker(script))
    await until(lambda: one.client.state.phase == "ready")
    inbox = Inbox()
    one.client.submit([wire.AddRequest("a", wire.TokenIds([1]), wire.SamplingParams(max_tokens=1))], inbox)
    assert [delta.token_ids for delta in await asyncio.wait_for(inbox.take(), 60)] == [[5]]
    with pytest.raises(EngineLost, match="exit code 4"):
        await asyncio.wait_for(inbox.take(), 60)


async def test_stopping_while_it_pauses_between_starts_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "backoff", lambda deaths, jitter: 60.0)
    client = EngineClient(command=shell("exit 1"))
    run = asyncio.create_task(client.run("{}"))
    await until(lambda: client.restarts == 1)
    await client.stop()
    await asyncio.wait_for(run, 60)


async def test_stopping_while_the_process_is_being_started_ends_it(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = EngineProcess.start
    starting, go = asyncio.Event(), asyncio.Event()

    async def slow(*given: Any) -> EngineProcess:
        starting.set()
        await go.wait()
        return await start(*given)

    monkeypatch.setattr(EngineProcess, "start", slow)
    client = EngineClient(command=shell("exec sleep 60"))
    run = asyncio.create_task(client.run("{}"))
    await starting.wait()
    await client.stop()
    go.set()
    try:
        await asyncio.wait_for(asyncio.shield(run), 30)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert names_in(folders) == []


async def test_an_engine_that_does_not_hear_the_end_is_killed(life: Any, folders: Path) -> None:
    one = life(speaker("ready(); time.sleep(60)"))
    await until(lambda: one.client.state.phase == "ready")
    with capture_logs() as lines:
        await one.client.stop(grace=0.05)
        await asyncio.wait_for(one.run, 60)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["engine_killed"]
    assert names_in(folders) == []


async def test_an_engine_that_loads_ends_at_once_with_what_it_has_started(
    life: Any, folders: Path, tmp_path: Path
) -> None:
    """Check the end of an engine that may compile kernels: it reads no message and has nothing to finish."""
    started = tmp_path / "started"
    one = life(shell(f"trap '' TERM INT; sleep 600 & echo $! > {started}; wait; sleep 600"))
    await until(lambda: started.exists() and started.read_text().strip())
    with capture_logs() as lines:
        await one.client.stop(grace=600)
        await asyncio.wait_for(one.run, 60)
    assert [line for line in lines if line["log_level"] == "warning"] == []
    assert names_in(folders) == []
    await until(lambda: not running(int(started.read_text())))


def running(pid: int) -> bool:
    """Return whether the process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_cancelling_the_supervision_ends_the_process_too(folders: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    run = asyncio.create_task(EngineClient(command=shell(f"echo $$ > {pid_file}; exec sleep 60")).run("{}"))
    await until(lambda: pid_file.exists() and pid_file.read_text().strip())
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert names_in(folders) == []


async def test_a_message_to_an_engine_that_is_gone_is_lost_without_harm(folders: Path) -> None:
    process = await EngineProcess.start("{}", shell("exit 0"))
    assert await process.wait() == 0
    for _ in range(3):
        process.send(wire.Shutdown())
    process.kill()
    assert process.exit_code == 0
    process.close()
    assert names_in(folders) == []


async def test_an_engine_is_in_a_session_of_its_own_so_that_ctrl_c_is_not_for_it() -> None:
    process = await EngineProcess.start("{}", shell("exec sleep 60"))
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        process.close()
