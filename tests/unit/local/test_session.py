"""Local mode from the outside, with fake children: ready, demo, crash, drain, kill, edits, orphans."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console

from mamba_cli.errors import InvalidInput, NoFittingPlan, RunFailed
from mamba_cli.local.bring_up import bring_up
from model_configs import unserved_config
from prefork import FORK_SERVER
from small_hub import point_at, small_hub

FAKE = Path(__file__).parent / "fake_child.py"
LAUNCHER = (sys.executable, "-IS", str(FAKE))
"""Without packages, whose folder a start reads."""
CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def config(name: str) -> dict[str, object]:
    """Return a config.json as YAML can hold it: JSON has no infinity."""
    read: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text())
    return {key: value for key, value in read.items() if key != "time_step_limit"}


def deployment(name: str = "one", **spec: object) -> str:
    body = {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "file://./model", "config": config("nemotron-nano-9b-v2"), "maxModelLen": 4096},
            "memory": {"arena": "512Mi"},
            "resources": {"gpus": 0},
            "rollout": {"drainTimeout": "2s"},
            **spec,
        },
    }
    return json.dumps(body)


class Bench:
    """One `up` in this process's main thread, with what it printed and what its children did."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "mamba.yaml"
        self.file.write_text(deployment())
        self.logs = folder / "logs"
        self.journal_file = folder / "journal"
        self.journal_file.touch()
        self.output = io.StringIO()
        monkeypatch.setenv("FAKE_JOURNAL", str(self.journal_file))
        # The fake children take none of it.
        monkeypatch.setattr("mamba_cli.local.planning.available_bytes", lambda: 64 << 30)

    def up(self, *files: Path, once: bool = False, demo: bool = False, port: int = 0) -> int:
        console = Console(file=self.output, width=200, force_terminal=False)
        return bring_up(
            list(files) or [self.file], host="127.0.0.1", port=port, once=once, demo=demo, logs=self.logs,
            console=console, launcher=LAUNCHER,
        )  # fmt: skip

    @property
    def text(self) -> str:
        return self.output.getvalue()

    @property
    def journal(self) -> list[str]:
        return self.journal_file.read_text().splitlines()

    def when(self, seen: Callable[[], bool], then: Callable[[], None]) -> None:
        """Do `then` from another thread as soon as `seen`; if that never comes, the test's timeout speaks."""

        def wait() -> None:
            for _ in range(5000):
                if seen():
                    then()
                    return
                time.sleep(0.05)

        Thread(target=wait, daemon=True).start()

    def pid(self, kind: str) -> int:
        return next(int(line.split()[-1]) for line in self.journal if line.startswith(f"{kind} started"))

    def events(self, kind: str, what: str) -> int:
        return sum(line.startswith(f"{kind} {what}") for line in self.journal)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # Tests that `nohup` started ignore the end of the terminal, and so would `up`.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield Bench(tmp_path, monkeypatch)
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mamba_cli.local.supervisor.delay_after", lambda deaths, restart_policy: 0.01 * deaths
    )


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def end_as_a_service_manager() -> None:
    interrupt(signal.SIGTERM)


def close_the_terminal() -> None:
    interrupt(signal.SIGHUP)


def test_once_brings_up_all_objects_behind_one_endpoint_shows_them_and_drains_with_code_0(
    bench: Bench, tmp_path: Path
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # As `nohup` starts a program: the end of the terminal is nothing to it.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = [signal.getsignal(number) for number in numbers]
        bench.file.write_text(deployment(replicas=2))
        other = tmp_path / "other.yaml"
        other.write_text(deployment("two") + "\n---\n" + deployment("three"))
        assert bench.up(bench.file, other, once=True) == 0
        assert [signal.getsignal(number) for number in numbers] == signals
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "strategy" in bench.text
    assert "spec.replicas: ignored, because one engine runs here" in bench.text
    assert "curl http://127.0.0.1:" in bench.text
    assert re.search(r"status page: http://127\.0\.0\.1:\d+/ui$", bench.text, re.MULTILINE)
    urls = [line.split()[-1] for line in bench.text.splitlines() if " is ready: " in line]
    assert (len(urls), len(set(urls))) == (3, 1)
    # The gateway ends before the engines behind it.
    ends = [line.split()[0] for line in bench.journal if "drained" in line]
    assert ends == ["gateway", "serve", "serve", "serve"]


def test_what_runs_is_found_by_its_file_and_its_name(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query the address of two files of one command by each; afterwards neither is found."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    second = tmp_path / "two.yaml"
    second.write_text(deployment("two"))
    said: dict[str, str] = {}

    def ask() -> None:
        for target in (str(bench.file), str(second), "two"):
            words = ("status", target)
            done = FORK_SERVER.run("-m", "mamba_cli", *words, env={**os.environ, "COLUMNS": "200"})
            said[target] = done.stdout + done.stderr
        interrupt()

    bench.when(lambda: bench.text.count("is ready: http") == 2, ask)
    assert bench.up(bench.file, second) == 0
    urls = dict(re.findall(r"(\w+) is ready: (http://127\.0\.0\.1:\d+)", bench.text))
    assert urls["one"] == urls["two"]
    for target in (str(bench.file), str(second), "two"):
        assert urls["two"] in said[target]
    assert list((tmp_path / "run").rglob("*.json")) == []


def test_the_demo_shows_answers_and_what_was_resumed_and_ends_without_a_terminal(bench: Bench) -> None:
    assert bench.up(demo=True) == 0
    assert bench.text.count("'green'") == 4
    assert "/v1/chat/completions" in bench.text
    assert "120 of" in bench.text
    assert "were resumed from a checkpoint" in bench.text
    assert "the endpoint: http://127.0.0.1:" in bench.text


def test_ctrl_c_drains_and_ends_with_code_0(bench: Bench) -> None:
    bench.when(lambda: "is ready" in bench.text, interrupt)
    assert bench.up() == 0
    assert "draining" in bench.text
    assert bench.events("serve", "drained") == 1


def test_ctrl_c_while_engines_load_waits_for_none_and_promises_nothing_to_requests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "load=600")
    bench.when(lambda: "one: weights" in bench.text, interrupt)
    assert bench.up() == 0
    assert "stopping: nothing is served yet" in bench.text
    assert "draining" not in bench.text
    assert bench.text.index("stopping") > bench.text.rindex("one: ")
    assert "is ready" not in bench.text
    assert bench.events("serve", "drained") == 1


def test_a_child_that_does_not_hear_is_killed_after_the_drain_timeout(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GATEWAY", "deaf")
    began = time.monotonic()
    bench.file.write_text(deployment(rollout={"drainTimeout": "500ms"}))
    assert bench.up(once=True) == 0
    assert "one-gateway did not end in time: killed" in bench.text
    assert bench.events("serve", "drained") == 1
    assert time.monotonic() - began < 30


def test_a_second_ctrl_c_ends_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "finish=60")
    monkeypatch.setenv("FAKE_GATEWAY", "finish=60")
    bench.file.write_text(deployment(rollout={"drainTimeout": "10m"}))
    bench.when(lambda: "is ready" in bench.text, interrupt)
    bench.when(lambda: "draining:" in bench.text, interrupt)
    began = time.monotonic()
    assert bench.up() == 0
    assert "ending now" in bench.text
    assert time.monotonic() - began < 30


def test_invalid_input_in_a_child_ends_everything_with_its_code_and_its_last_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "exit=2")
    assert bench.up() == 2
    assert "one-engine ended with code 2: a restart would not help" in bench.text
    assert "fake serve: cannot go on" in bench.text
    assert bench.events("serve", "started") == 1


@pytest.mark.usefixtures("quick_restarts")
def test_a_crash_loop_backs_off_and_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "exit=9")
    assert bench.up() == 1
    assert bench.events("serve", "started") == 5
    assert "restart in 0.01 s" in bench.text
    assert "restart in 0.04 s" in bench.text
    assert "ended 5 times without ever being ready: giving up" in bench.text


def test_one_child_that_dies_while_the_other_starts_is_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "load=2")
    monkeypatch.setenv("FAKE_GATEWAY", "crash=1")
    bench.when(lambda: bench.events("gateway", "started") >= 2, interrupt)
    assert bench.up() == 0
    assert "one-gateway ended with code 17: restart in 0.5 s" in bench.text
    assert bench.events("serve", "started") == 1


def test_another_gateway_on_the_port_is_not_taken_for_ours(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port was free when it was looked at, and taken when our gateway came to bind it."""
    monkeypatch.setattr("mamba_cli.local.supervisor.delay_after", lambda deaths, restart_policy: 0.01)
    taken = 'mambaserve_gateway_endpoint_ready{endpoint="127.0.0.1:1"} 1.0\n'

    class Other(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = b'{"endpoints": {"ready": 1}}' if self.path == "/readyz" else taken.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        monkeypatch.setattr("mamba_cli.local.bring_up.front_port", lambda *_: other.server_port)
        assert bench.up(once=True) == 1
        other.shutdown()
    assert "is ready" not in bench.text
    assert "Address already in use" in bench.text


def test_an_engine_that_died_is_said_to_be_ready_again_behind_the_same_gateway(bench: Bench) -> None:
    bench.when(lambda: "one is ready: " in bench.text, lambda: os.kill(bench.pid("serve"), signal.SIGUSR1))
    bench.when(lambda: "one-engine is ready again" in bench.text, close_the_terminal)
    assert bench.up() == 0
    assert "one is ready: " in bench.text
    assert "one-engine ended with code 17: restart in 0.5 s" in bench.text
    assert "one-engine is ready again" in bench.text
    assert "| last words" in bench.text
    assert f"logs: {bench.logs}" in bench.text
    assert f"full log: {bench.logs / 'one-engine.log'}" in bench.text
    assert bench.events("gateway", "started") == 1
    assert bench.events("gateway", "drained") == bench.events("serve", "drained") == 1


def test_an_engine_that_runs_and_is_not_ready_for_a_while_says_why(bench: Bench) -> None:
    lapse, written = (bench.journal_file.with_name(f"journal.{end}") for end in ("lapse", "written"))
    written.write_text("its process died")
    bench.when(lambda: "one is ready: " in bench.text, lambda: written.rename(lapse) and None)
    bench.when(lambda: "one-engine is not ready: its process died" in bench.text, lapse.unlink)
    bench.when(lambda: "one-engine is ready again" in bench.text, interrupt)
    assert bench.up() == 0
    assert bench.text.count("is not ready") == bench.text.count("is ready again") == 1
    assert bench.events("serve", "started") == 1


def test_a_model_without_a_chat_template_gets_the_curl_and_the_demo_of_completions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GATEWAY", "plain")
    assert bench.up(demo=True) == 0
    assert "/v1/chat/completions" not in bench.text
    assert bench.text.count("'green'") == 4


def test_a_full_disk_is_named_as_the_cause_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mamba_cli.local.supervisor.delay_after", lambda deaths, restart_policy: 0.01)
    monkeypatch.setenv("FAKE_GATEWAY", "exit=1")
    bench.logs.mkdir()
    (bench.logs / "one-gateway.log").symlink_to("/dev/full")
    assert bench.up() == 1
    assert "ended 5 times without ever being ready" in bench.text
    assert bench.text.count(f"no space left for logs in {bench.logs}") == 1


@pytest.mark.usefixtures("quick_restarts")
def test_a_child_that_cannot_start_says_why(bench: Bench) -> None:
    console = Console(file=bench.output, width=200)
    code = bring_up(
        [bench.file], host="127.0.0.1", port=0, once=True, demo=False, logs=bench.logs, console=console,
        launcher=("/nowhere/python",),
    )  # fmt: skip
    assert code == 1
    assert "could not start" in bench.text
    assert "/nowhere/python" in bench.text


def test_a_taken_port_is_named_before_anything_starts(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=rf"port {port} of 127.0.0.1 is in use"):
            bench.up(port=port)
    assert bench.journal == []
    assert bench.text == ""


def test_an_edit_while_the_engine_loads_is_applied_when_it_is_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "load=2")
    edited = deployment(stateCache={"strategy": "NoBuffer", "trackInterval": 512})
    bench.when(lambda: bench.events("serve", "started") == 1, lambda: bench.file.write_text(edited) and None)
    bench.when(lambda: "now runs" in bench.text, interrupt)
    assert bench.up() == 0
    assert bench.text.count("changed: the edit is applied once all engines are ready") == 1
    # Without a terminal, loading is shown in plain lines.
    assert "one: weights" in bench.text
    assert "one: starting" in bench.text
    assert "one: now runs NoBuffer with a checkpoint every 512 tokens" in bench.text


def test_edits_are_applied_said_or_refused_and_outlive_the_engine(bench: Bench) -> None:
    """Change the strategy of a running engine, then what needs a new start, then break the file."""
    cache = {"strategy": "ExtraBuffer", "trackInterval": 512}
    edits = {
        "is ready": deployment(stateCache=cache),
        "now runs": deployment(stateCache=cache, engine={"pageSize": 32}),
        "next start": deployment(stateCache=cache, engine={"pageSise": 32}),
    }
    for seen, edited in edits.items():
        bench.when(
            lambda seen=seen: seen in bench.text, lambda edited=edited: bench.file.write_text(edited) and None
        )
    bench.when(
        lambda: "nothing that runs is changed" in bench.text,
        lambda: os.kill(bench.pid("serve"), signal.SIGKILL),
    )
    bench.when(lambda: bench.events("serve", "runs=") == 2, end_as_a_service_manager)
    assert bench.up() == 0
    assert f"{bench.file} changed" in bench.text
    assert "one: now runs ExtraBuffer with a checkpoint every 512 tokens" in bench.text
    applied = [
        json.loads(line.split("strategy ")[1].rsplit(" ", 1)[0])
        for line in bench.journal
        if "strategy" in line
    ]
    assert {**cache, "maxCheckpointsPerPath": 4, "eviction": "RecomputeCost"} in applied
    assert "one: spec.engine.pageSize: takes effect at the next start" in bench.text
    assert "spec.engine.pageSise: unknown field; did you mean pageSize?" in bench.text
    assert bench.events("serve", "runs=NoBuffer") == bench.events("serve", "runs=ExtraBuffer") == 1
    assert bench.events("gateway", "drained") == 1


def test_a_demo_that_gets_no_answer_drains_and_ends_with_1(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GATEWAY", "chat=500")
    assert bench.up(demo=True) == 1
    assert "error: demo: http://127.0.0.1:" in bench.text
    assert "answered 500: " in bench.text
    assert bench.events("gateway", "drained") == bench.events("serve", "drained") == 1


def test_a_defect_beside_the_main_loop_ends_the_run_instead_of_hanging_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> list[str]:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("mamba_cli.local.edits.FileEdits.take_over", broken)
    bench.when(lambda: "is ready" in bench.text, lambda: bench.file.write_text("changed") and None)
    assert bench.up() == 1
    assert "internal error: ZeroDivisionError: a defect" in bench.text
    assert bench.events("gateway", "drained") == bench.events("serve", "drained") == 1


def test_an_environment_that_no_process_can_have_is_said_like_any_failed_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the gateway to be there before the engine is given up.
    monkeypatch.setattr("mamba_cli.local.supervisor.delay_after", lambda deaths, restart_policy: 1.0)
    bench.file.write_text(deployment(engine={"env": [{"name": "A", "value": "a\0b"}]}))
    assert bench.up() == 1
    assert "one-engine could not start (embedded null byte)" in bench.text
    assert bench.events("gateway", "drained") == 1


def test_a_model_that_cannot_be_downloaded_is_refused_before_anything_starts(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"uri": "hf://owner/name", "config": config("nemotron-nano-9b-v2"), "maxModelLen": 4096}
    bench.file.write_text(deployment(model=model))
    with small_hub(monkeypatch, str(tmp_path / "cache"), {"config.json": b"{}"}) as hub:
        hub.refuse = (404, "RepoNotFound")
        with pytest.raises(InvalidInput, match="the Hub has no model owner/name"):
            bench.up()
        point_at(monkeypatch, "http://127.0.0.1:9")
        with pytest.raises(RunFailed, match=r"mamba\.yaml: hf://owner/name: the Hub cannot be reached"):
            bench.up()
        assert bench.journal == []
        hub.refuse = None
        point_at(monkeypatch, hub.url)
        assert bench.up(once=True) == 0


def test_mode_plan_starts_nothing(bench: Bench) -> None:
    bench.file.write_text(deployment(mode="Plan"))
    assert bench.up() == 0
    assert "nothing is started" in bench.text
    assert bench.journal == []


def test_a_broken_file_is_refused_with_file_and_field(bench: Bench) -> None:
    bench.file.write_text(deployment(engine={"pageSize": "big"}))
    with pytest.raises(InvalidInput, match=r"mamba.yaml: document 1 \(one\): spec.engine.pageSize"):
        bench.up()


def test_a_plan_that_does_not_fit_starts_nothing_and_shows_the_numbers(bench: Bench) -> None:
    bench.file.write_text(deployment(memory={"arena": "30Mi"}))
    with pytest.raises(NoFittingPlan, match="the plan of one does not fit"):
        bench.up()
    assert "one sequence of 4096 tokens needs" in bench.text
    assert bench.journal == []


UNSERVED = unserved_config()


def test_a_model_no_engine_serves_is_planned_and_refused_before_anything_starts(bench: Bench) -> None:
    bench.file.write_text(deployment(model={"uri": "file://./m", "config": UNSERVED}))
    with pytest.raises(InvalidInput, match="gelu"):
        bench.up()
    assert "not served" in bench.text
    assert bench.journal == []


def test_plan_mode_shows_the_plan_of_a_model_no_engine_serves(bench: Bench) -> None:
    model = {"uri": "file://./m", "config": UNSERVED}
    bench.file.write_text(deployment(mode="Plan", model=model))
    assert bench.up() == 0
    assert "not served" in bench.text


def test_children_end_when_their_parent_is_killed(bench: Bench, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rich.console import Console\n"
        "from mamba_cli.local import planning; from mamba_cli.local.bring_up import bring_up\n"
        "planning.available_bytes = lambda: 64 << 30\n"
        f"bring_up([Path({str(bench.file)!r})], host='127.0.0.1', port=0, once=False, demo=False,"
        f" logs=Path({str(bench.logs)!r}), console=Console(), launcher={LAUNCHER!r})\n"
    )
    roots = [str(Path(__file__).parents[3] / root) for root in ("libs", "server", "operator", "cli")]
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while bench.events("serve", "started") + bench.events("gateway", "started") < 2:
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(line.split()[-1]) for line in bench.journal if "started" in line]
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert bench.events("serve", "drained") == bench.events("gateway", "drained") == 1


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
