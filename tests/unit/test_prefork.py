"""Forked processes are like any others: arguments, environment, folder, exit codes, signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import prefork
import shared_imports
from eventually import PATIENCE, wait_until
from prefork import FORK_SERVER, ForkedProcess, ForkServer


def run(code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return FORK_SERVER.run("-c", code, *arguments, env={"PATH": os.environ["PATH"], **more})


def test_a_child_has_its_own_arguments_environment_and_folder(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], sorted(os.environ), os.getcwd()); print('e', file=sys.stderr)"
    done = FORK_SERVER.run("-c", code, "one", env={"MINE": "1"}, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == f"['one'] ['MINE'] {tmp_path}"
    assert (done.returncode, done.stderr) == (0, "e\n")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('said')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import atexit; atexit.register(print, 'last')", 0),
    ],
)
def test_it_ends_as_a_program_does(code: str, exit_code: int) -> None:
    done = run(code)
    assert done.returncode == exit_code
    assert ("ZeroDivisionError" in done.stderr) is ("/" in code)
    assert ("last" in done.stdout) is ("atexit" in code)


def test_a_module_runs_as_the_main_one() -> None:
    done = FORK_SERVER.run("-m", "mamba_cli", "--version", env=os.environ)
    assert (
        done.stdout
        == subprocess.run(
            [str(Path(sys.executable).with_name("mambaserve")), "--version"], capture_output=True, text=True
        ).stdout
    )


def sleeping(server: ForkServer = FORK_SERVER) -> ForkedProcess:
    process = server.start("-c", "import time; print('up', flush=True); time.sleep(999)", env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_signals_reach_it_and_its_end_is_known() -> None:
    process = sleeping()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(PATIENCE) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM
    process.kill()  # it is gone: nobody else gets this
    process.close()


def test_children_end_in_any_order() -> None:
    many = [sleeping() for _ in range(5)]
    for process in (many[3], many[0], many[4], many[1], many[2]):
        assert process.poll() is None
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        process.close()


def test_threads_may_start_them_at_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda n: run("import sys; print(sys.argv[1])", str(n)).stdout, range(16)))
    assert done == [f"{n}\n" for n in range(16)]


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_no_child_outlives_the_server_however_it_ends() -> None:
    server = ForkServer()
    process = sleeping(server)
    child = psutil.Process(process.pid)
    os.kill(server.process_id, signal.SIGKILL)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    process.close()


LEND = """
import sys
sys.path.insert(0, sys.argv[1])
import prefork, shared_imports
shared_imports.lend(sys.argv[2], lambda: None, lambda: None, prefork._serve)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_servers_of_several_workers_share_imports_and_end_with_these(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", LEND, str(Path(prefork.__file__).parent), folder]
        lender = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert lender.stdout is not None
        with lender.stdout as ready:
            assert ready.read() == b"rr"
        monkeypatch.setattr(shared_imports, "folder", folder)
        monkeypatch.setattr(shared_imports, "forks", [])
        servers = [ForkServer(), ForkServer()]
        processes = [sleeping(server) for server in servers]
        assert [psutil.Process(server.process_id).ppid() for server in servers] == [lender.pid] * 2
        assert [psutil.Process(process.pid).ppid() for process in processes] == shared_imports.forks
        processes[0].terminate()
        assert processes[0].wait(PATIENCE) == -signal.SIGTERM
        lender.kill()
        lender.wait(PATIENCE)
        assert processes[1].wait(PATIENCE) == -signal.SIGKILL
        for process in processes:
            process.close()


def test_the_answer_to_an_interrupted_start_is_not_that_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer()
    sleeping(server).close()

    class Interrupted:
        def __init__(self, connection: socket.socket) -> None:
            self.fileno, self.sendall, self.close = connection.fileno, connection.sendall, connection.close
            self.sendmsg = connection.sendmsg

        def recv(self, _: int) -> bytes:
            raise KeyboardInterrupt

    assert server._socket is not None
    monkeypatch.setattr(server, "_socket", Interrupted(server._socket))
    with pytest.raises(KeyboardInterrupt):
        sleeping(server)
    process = sleeping(server)
    process.terminate()
    assert process.wait(PATIENCE) == -signal.SIGTERM
    process.close()


PROGRAM = """
import asyncio, json, os, sys

async def start(*command, **options):
    return await asyncio.create_subprocess_exec(sys.executable, *command, **options)

async def main():
    pipe, seen = asyncio.subprocess.PIPE, {}
    tool = await start("-m", "json.tool", "--compact", stdin=pipe, stdout=pipe, start_new_session=True)
    tool.stdin.write(b'{"a":  1}')
    tool.stdin.close()
    seen["answer"] = (await tool.stdout.read()).decode().strip(), await tool.wait()
    for name in ("MINE", "TRITON_INTERPRET"):
        child = await start(sys.argv[1], "7", env={**os.environ, name: "1"}, stdout=pipe)
        seen[name] = json.loads(await child.stdout.read()), await child.wait()
    left = await start(sys.argv[1], "wait", stdout=pipe, start_new_session=True)
    seen["left"] = json.loads(await left.stdout.readline())
    seen["is group"] = os.getpgid(left.pid) == left.pid != os.getpgid(0)
    killed = await start(sys.argv[1], "wait", stdout=pipe)
    killed.kill()
    seen["killed"] = await killed.wait()
    print(json.dumps(seen), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
CHILD = """
import json, os, sys, time
print(json.dumps([os.getpid(), os.getppid(), os.environ.get("MINE"), "torch" in sys.modules]), flush=True)
time.sleep(999) if sys.argv[1] == "wait" else sys.exit(int(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_CHILD_SUBREAPER is Linux")
def test_children_of_a_warm_program_are_its_own_and_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "child.py"
    file.write_text(CHILD)
    program = FORK_SERVER.start("-c", PROGRAM, str(file), env=os.environ, warm=True)
    assert program.stdout is not None
    seen = json.loads(program.stdout.readline())
    assert seen["answer"] == ['{"a":1}', 0]
    ((_, parent, mine, has_torch), code) = seen["MINE"]
    assert (parent, mine, has_torch, code) == (program.pid, "1", True, 7)
    # What this variable changes was imported without it.
    ((_, parent, mine, has_torch), code) = seen["TRITON_INTERPRET"]
    assert (parent, mine, has_torch, code) == (program.pid, None, False, 7)
    assert (seen["is group"], seen["killed"]) == (True, -signal.SIGKILL)
    child = psutil.Process(seen["left"][0])
    assert child.ppid() == program.pid
    program.kill()
    assert program.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    program.close()
