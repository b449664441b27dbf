"""The engine process from start to exit code: what its parent is told, and that it never outlives it."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_trial import EngineTrial, TrialSetup
from mamba_kernels.dispatch.backend import TORCH
from mamba_planner import InsufficientMemory, UnusableInput
from mamba_server.engine import __main__ as command
from mamba_server.wire import Fatal, FromEngine, Shutdown
from mamba_settings.engine_settings import EngineSettings
from transfer_peers import LAYOUT

Serve = Callable[..., int]


class Port:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.sent: list[FromEngine] = []
        self.closed = False

    def wake(self) -> None:
        """Do nothing: the scripted loop never waits."""

    def send(self, message: FromEngine) -> None:
        assert not self.closed, "words after the end"
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    """Yield the command with its arguments and no parent process; signals are restored afterwards."""
    made = Port()
    # The command sets variables for libraries, which the processes of other tests would inherit.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    settings = EngineSettings(model="m", page_size=32).model_dump_json()
    monkeypatch.setattr(
        sys, "argv", ["engine", "--settings", settings, "--to-engine", "ipc://a", "--from-engine", "ipc://b"]
    )
    monkeypatch.setattr("mamba_server.engine.engine_loop.EngineSockets", lambda *_: made)
    # What it does with the memory of its process is not for that of the tests.
    monkeypatch.setattr(command, "_import_torch", lambda _: None)
    monkeypatch.setattr(command, "_die_with_parent", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    yield made
    signal.signal(signal.SIGINT, before)


def test_torch_is_not_there_before_it_is_said_how_threads_wait() -> None:
    """OpenMP reads it once, when torch brings it; numpy starts threads while it is imported."""
    code = "import mamba_server.engine.__main__, sys; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def serving(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    monkeypatch.setattr(command, "_serve", serve)


def raising(error: BaseException) -> Serve:
    def serve(*_: object) -> int:
        raise error

    return serve


def test_it_serves_with_the_settings_it_was_handed(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineSettings] = []

    def serve(settings: EngineSettings, *_: object) -> int:
        seen.append(settings)
        return 0

    serving(monkeypatch, serve)
    assert command.main() == 0
    assert (seen[0].model, seen[0].page_size) == ("m", 32)
    assert port.closed
    assert port.sent == []


def test_no_garbage_is_searched_for_while_torch_is_imported(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    monkeypatch.setattr(command, "_import_torch", lambda _: enabled.append(gc.isenabled()))
    serving(monkeypatch, lambda *_: enabled.append(gc.isenabled()) or 0)
    assert command.main() == 0
    assert enabled == [False, True]


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnusableInput("track_interval 5 must be"), 2), (InsufficientMemory("needs 9Gi, has 8Gi", 9, 8), 3)],
)
def test_a_failure_with_a_code_is_told_in_its_own_words_and_is_the_exit_code(
    port: Port, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    serving(monkeypatch, raising(error))
    assert command.main() == code
    assert port.sent == [Fatal(str(error), code)]
    assert port.closed


def test_a_failure_nobody_foresaw_is_told_and_leaves_its_traceback(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(monkeypatch, raising(KeyError("weights")))
    with pytest.raises(KeyError, match="weights"):
        command.main()
    assert port.sent == [Fatal("the engine failed: KeyError: 'weights'", 1)]
    assert port.closed


def test_a_ctrl_c_in_the_terminal_is_left_to_the_api_process(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    serving(monkeypatch, serve)
    assert command.main() == 0


def test_an_engine_whose_parent_is_gone_already_does_not_begin(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent may die between the start of this process and the wish to die with it."""
    parents = iter([4242, 1])
    monkeypatch.setattr(command.os, "getppid", lambda: next(parents))
    serving(monkeypatch, raising(AssertionError("it began")))
    assert command.main() == 1
    assert port.sent == []


def test_the_threads_are_chosen_before_torch_could_look(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def imports(_: EngineSettings) -> None:
        seen.update(os.environ)
        raise InsufficientMemory("enough", 1, 1)

    monkeypatch.setattr(command, "_import_torch", imports)
    monkeypatch.setattr(command, "usable_cores", lambda: 5)
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_NUM_THREADS")
    for name in names:
        # So that what is set below is put back as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert command.main() == 3
    assert seen["OMP_NUM_THREADS"] == "5"
    assert seen["OMP_WAIT_POLICY"] == "passive"
    assert seen["OPENBLAS_NUM_THREADS"] == "1"
    assert port.sent == [Fatal("enough", 3)]


@pytest.mark.slow
def test_no_full_search_for_garbage_stops_a_serving_engine(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = EngineTrial(TrialSetup(), random.Random(0))
    shape = SimpleNamespace(vocab_size=97, eos_token_ids=(0,), draft_model=None)
    plan = SimpleNamespace(weights_bytes=1, max_model_len=64, to_json=dict)
    booted = SimpleNamespace(
        core=trial.core,
        plan=plan,
        model=shape,
        directory=Path("nowhere"),
        stream=trial.core._stream,
        kernels=TORCH,
        device_counters=dict,
        device_gauges=dict,
        memory=torch.zeros(0, dtype=torch.uint8),
        state_layout=LAYOUT,
        decode_steps={},
        bank=None,
        adapters=(),
    )
    monkeypatch.setattr("mamba_server.engine.boot.boot", lambda *_: booted)
    monkeypatch.setattr(command, "set_up_threads", lambda *_: False)
    before, seen = gc.get_threshold(), []

    def receive(_: float) -> list[Shutdown]:
        seen.append((gc.get_threshold(), gc.get_freeze_count()))
        return [Shutdown()]

    monkeypatch.setattr(port, "receive", receive, raising=False)
    try:
        assert command.main() == 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    ((threshold, frozen),) = seen
    assert threshold[:2] == before[:2]
    assert threshold[2] > 1_000_000
    assert frozen > 0


def test_missing_addresses_are_a_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engine", "--settings", "{}"])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2


@pytest.mark.parametrize("missing", [True, False])
def test_kernels_that_have_to_be_compiled_are_left_to_the_start_that_says_so(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the engine has sockets nobody would hear why it takes a minute."""
    opened: list[None] = []
    monkeypatch.setattr("mamba_kernels.cpu.library.has_to_be_built", lambda: missing)
    monkeypatch.setattr("mamba_kernels.cpu.library.library", lambda: opened.append(None))
    monkeypatch.setattr("mamba_server.engine.process_memory.library_pages.give_back_libraries", lambda: None)
    command._import_torch(EngineSettings(model="m", device="cpu"))
    assert len(opened) == (not missing)
