"""`mambaserve run` serves a model for one message, and leaves nothing of it behind."""

import signal
from pathlib import Path

import psutil
import pytest

from servers import Command


def test_one_message_is_answered_and_the_engine_ends() -> None:
    with Command("run", "builtin://tiny-recall", "The capital of Norway is Oslo. What is it?") as run:
        run.wait_for("allocating the arena")
        engines = psutil.Process(run.process.pid).children(recursive=True)
        assert run.wait() == 0, run.output
    assert "generated]" in run.output
    assert engines
    assert not any(engine.is_running() for engine in engines)


@pytest.mark.slow
def test_an_interrupted_start_ends_the_engine_too() -> None:
    with Command("run", "builtin://tiny-recall", "Hello") as run:
        run.wait_for("importing torch")
        engines = psutil.Process(run.process.pid).children(recursive=True)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130, run.output
    assert engines
    assert not any(engine.is_running() for engine in engines)


def test_a_model_that_does_not_exist_ends_with_the_message_of_the_engine(tmp_path: Path) -> None:
    with Command("run", str(tmp_path / "nothing"), "Hello") as run:
        assert run.wait() == 2
    assert "does not exist" in run.output
