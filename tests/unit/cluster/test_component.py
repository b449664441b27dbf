"""Background processes of a cluster: they become ready or say why not, end when told, and can start again."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventually import PATIENCE, wait_until
from testcluster import component
from testcluster.component import Component
from testcluster.errors import NotReady

Make = Callable[..., Component]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Create components from shell scripts and end them after the test."""
    made: list[Component] = []

    def shell(script: str, name: str = "thing") -> Component:
        made.append(Component(name, ["/bin/sh", "-c", script], tmp_path / f"{name}.log"))
        return made[-1]

    yield shell
    for one in made:
        one.stop(grace=0)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_it_runs_until_it_is_stopped(make: Make) -> None:
    thing = make("exec sleep 60")
    assert not thing.running

    thing.start()
    assert thing.running
    pid = thing.pid
    assert pid is not None

    thing.stop()
    assert not thing.running
    assert thing.pid is None
    assert not alive(pid)


def test_starting_twice_starts_one(make: Make) -> None:
    thing = make("exec sleep 60")

    thing.start()
    first = thing.pid
    thing.start()

    assert thing.pid == first


def test_it_can_be_started_again_and_its_log_goes_on(make: Make) -> None:
    thing = make("echo started; exec sleep 60")

    for expected in (1, 2):
        thing.start()
        thing.wait_until(lambda: thing.tail().count("started") == expected, timeout=PATIENCE, what="started")  # noqa: B023
        thing.stop()


def test_one_that_ignores_the_request_to_end_is_killed(make: Make) -> None:
    thing = make("trap '' TERM; echo armed; while :; do sleep 0.1; done")
    thing.start()
    thing.wait_until(lambda: "armed" in thing.tail(), timeout=PATIENCE, what="armed")

    thing.stop(grace=0.3)

    assert not thing.running


def test_one_that_is_asked_gets_to_finish(make: Make, tmp_path: Path) -> None:
    thing = make(f"trap 'touch {tmp_path}/finished; exit' TERM; echo armed; while :; do sleep 0.1; done")
    thing.start()
    thing.wait_until(lambda: "armed" in thing.tail(), timeout=PATIENCE, what="armed")

    thing.stop()

    assert (tmp_path / "finished").exists()


def test_one_that_dies_before_it_is_ready_says_its_last_words(make: Make) -> None:
    thing = make("echo port is taken >&2; exit 3")
    thing.start()

    with pytest.raises(NotReady, match=r"thing ended with exit code 3 before ready.\nport is taken"):
        thing.wait_until(lambda: False, timeout=PATIENCE, what="ready")


def test_one_that_was_killed_says_by_which_signal(make: Make) -> None:
    thing = make("kill -KILL $$")
    thing.start()

    with pytest.raises(NotReady, match="signal SIGKILL"):
        thing.wait_until(lambda: False, timeout=PATIENCE, what="ready")


def test_one_that_never_gets_ready_says_how_long_it_had(make: Make) -> None:
    thing = make("echo thinking; exec sleep 60")
    thing.start()
    thing.wait_until(lambda: "thinking" in thing.tail(), timeout=PATIENCE, what="thinking")

    with pytest.raises(NotReady, match=r"thing: not ready within 0.2 s.\nthinking"):
        thing.wait_until(lambda: False, timeout=0.2, what="ready")


def test_the_message_holds_the_end_of_a_long_log(make: Make) -> None:
    thing = make("for n in $(seq 100); do echo line $n; done; exit 1")
    thing.start()

    with pytest.raises(NotReady) as caught:
        thing.wait_until(lambda: False, timeout=PATIENCE, what="ready")

    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == component.TAIL_LINES
    assert lines[-1] == "line 100"


def test_stopping_one_that_never_ran_is_no_error(make: Make) -> None:
    make("exit").stop()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_it_dies_with_the_run_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from testcluster.component import Component\n"
        f"thing = Component('thing', ['sleep', '60'], Path({str(tmp_path / 'log')!r}))\n"
        "thing.start(); print(thing.pid, flush=True); time.sleep(60)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(component.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        # What it was told at its birth takes effect once it has become what it shall be.
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == "sleep")
        run.send_signal(signal.SIGKILL)

    wait_until(lambda: not alive(pid), "its end")
