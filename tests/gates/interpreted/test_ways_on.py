"""A kernel or capture that fails while an engine starts costs speed and no answer; later it costs a step."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

from engines import make_engine, run
from gate_cases import LARGE
from mamba_kernels.dispatch.operators import OPERATORS
from mamba_kernels.kernel_choice import VARIABLE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.boot import BootOverrides, Engine, ready_plan
from mamba_server.engine.errors import DeviceLost
from mamba_server.wire import AddRequest, SamplingParams
from recorded_work import RecordedGraphs
from testmodels.checkpoints import random_granite, random_qwen3_next

SHORT = OutOfResources(300_000, 232_448, "shared memory")
PENALIZED = SamplingParams(
    max_tokens=5, temperature=0.7, seed=9, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.1
)
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the splits: idle programs take the interpreter as long as others."""
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)


def requests() -> list[AddRequest]:
    """Return a prompt of several pieces and a short one."""
    return [AddRequest("a", list(range(7, 57)), GREEDY), AddRequest("b", list(range(20, 29)), PENALIZED)]


def start(path: Path, graphs: RecordedGraphs | None = None, **settings: Any) -> Engine:
    trial = BootOverrides(graphs=graphs or RecordedGraphs(), warm_up=True)
    sizes = {"max_running_requests": 2, "chunked_prefill_tokens": 64, "dtype": "float32"}
    return make_engine(path, trial=trial, **{**sizes, **settings})


def tokens(engine: Engine) -> list[list[int]]:
    answers = run(engine, requests())
    return [answers[name, 0].tokens for name in "ab"]


def fails(error: Exception) -> Callable[..., None]:
    def kernel(*_: Any) -> None:
        raise error

    return kernel


def break_kernel(patch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """Let the kernels of an operator fail in every engine that is booted from now on."""
    families = ("four_bit", "fp8", "gated_delta", "short_conv")
    family = next((each for each in families if name.startswith(each)), name)
    module = {"route": "moe", "gated_delta_replay": "delta_replay"}.get(name, family)
    patch.setattr(importlib.import_module(f"mamba_kernels.{module}.triton"), name, fails(error))


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with experts and rotary positions."""
    return random_granite(
        tmp_path_factory.mktemp("granite"), num_hidden_layers=2, layer_types=["mamba", "attention"],
        num_local_experts=4, num_experts_per_tok=2, position_embedding_type="rope",
    )  # fmt: skip


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_qwen3_next(
        tmp_path_factory.mktemp("qwen"), num_hidden_layers=2, num_experts=4, num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"], linear_key_head_dim=16, linear_value_head_dim=16,
    )  # fmt: skip


@dataclass(frozen=True)
class Right:
    """An engine whose kernels all work, and its tokens."""

    engine: Engine
    tokens: list[list[int]]


@pytest.fixture(scope="module")
def right() -> dict[Path, Right]:
    """Return the engines whose kernels all work, by model. A start takes the interpreter eight seconds."""
    return {}


def of_all_kernels(right: dict[Path, Right], path: Path) -> Right:
    if path not in right:
        engine = start(path)
        assert not engine.kernels.operators.left_out
        assert engine.decode_steps == {"captured": 2, "issued": 0}
        right[path] = Right(engine, tokens(engine))
    return right[path]


def expected(right: dict[Path, Right], path: Path) -> list[list[int]]:
    return of_all_kernels(right, path).tokens


PLANNED_ON_THE_HOST = {"gated_delta_update", "paged_attention", "state_update"}
"""The references of these read routes and pages there: a step by them is no graph. Others read no tensor."""


@pytest.mark.parametrize(
    "name",
    ["sample"]
    + (
        ["gated_delta_update", "moe", "paged_attention", "rms_norm", "ssd_prefill", "state_update"]
        if LARGE
        else []
    ),
)
def test_a_kernel_that_fails_at_the_start_is_left_to_its_reference_for_good(
    name: str,
    granite: Path,
    qwen: Path,
    right: dict[Path, Right],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = qwen if name.startswith("gated_delta") else granite
    wanted = expected(right, path)
    break_kernel(monkeypatch, name, SHORT)
    engine = start(path)
    assert engine.kernels.operators.left_out == {name: "failed"}
    assert ready_plan(engine)["kernelsLeftOut"] == {name: "failed"}
    assert engine.device_gauges()[f"kernels_left_out{{operator={name},cause=failed}}"] == 1
    told = [each for each in caplog.messages if f"kernel {name} is left out" in each]
    assert len(told) == 1
    assert "shared memory" in told[0]
    captured = 0 if name in PLANNED_ON_THE_HOST else 2
    assert engine.decode_steps == {"captured": captured, "issued": 2 - captured}
    assert tokens(engine) == wanted


def test_where_every_kernel_fails_torch_computes(
    granite: Path, right: dict[Path, Right], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected(right, granite)
    for name in OPERATORS:
        break_kernel(monkeypatch, name, RuntimeError("Failed to find C compiler"))
    engine = start(granite)
    of_other_families_and_settings = {
        "four_bit_product",
        "fp8_norm",
        "fp8_product",
        "fp8_rows",
        "gated_delta_prefill",
        "gated_delta_replay",
        "gated_delta_update",
        "state_replay",
        "short_conv_prefill",
        "short_conv_update",
    }
    assert engine.kernels.operators.left_out.keys() >= {*OPERATORS} - of_other_families_and_settings - {
        "rope",
        "activate",
    }
    assert tokens(engine) == wanted


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
def test_a_kernel_falls_out_at_the_start_also_where_no_decode_step_can_be_prepared(
    granite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_kernel(monkeypatch, "rms_norm", SHORT)
    engine = start(granite, batch_invariant=True)
    assert engine.kernels.operators.left_out == {"rms_norm": "failed"}
    assert not engine.decode_steps
    assert len(tokens(engine)[0]) == 5


def test_a_device_that_is_lost_at_the_start_is_no_kernels_failure(
    granite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "Triton Error [CUDA]: an illegal memory access was encountered"
    break_kernel(monkeypatch, "rms_norm", RuntimeError(lost))
    with pytest.raises(DeviceLost, match="illegal memory access"):
        start(granite)


def test_a_kernel_that_fails_while_serving_fails_the_step_and_is_used_again(
    granite: Path, right: dict[Path, Right], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, wanted = of_all_kernels(right, granite).engine, expected(right, granite)
    scan = engine.kernels.operators.ssd_prefill
    with monkeypatch.context() as patch:
        patch.setattr(scan, "kernel", fails(SHORT))
        engine.core.add(AddRequest("bad", list(range(7, 57)), GREEDY))
        deltas = []
        while not engine.core.idle:
            deltas += engine.core.step()
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["error"]
    assert engine.core.failed_steps == 1
    assert "shared memory" in engine.core.last_error
    assert not engine.kernels.operators.left_out
    engine.core.failed_steps = 0
    assert tokens(engine) == wanted


@pytest.mark.skipif(not LARGE, reason="test_left_out_kernels asks a server for it: MAMBASERVE_GATES=large")
def test_operators_are_left_out_that_the_variable_names(
    granite: Path, right: dict[Path, Right], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected(right, granite)
    monkeypatch.setenv(VARIABLE, "triton, -paged_attention,-moe")
    for name in ("paged_attention", "moe"):
        break_kernel(monkeypatch, name, AssertionError("it was left out"))
    engine = start(granite)
    assert engine.kernels.operators.left_out == {"moe": "asked", "paged_attention": "asked"}
    assert tokens(engine) == wanted


class BrokenGraphs(RecordedGraphs):
    """Fails in every capture."""

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        work()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def test_an_engine_whose_captures_fail_serves_and_says_so(
    granite: Path, right: dict[Path, Right], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = expected(right, granite)
    engine = start(granite, BrokenGraphs())
    assert "not permitted when stream is capturing" in caplog.text
    assert ready_plan(engine)["decodeSteps"] == {"captured": 0, "issued": 2}
    gauges = engine.device_gauges()
    assert (gauges["decode_steps{kind=captured}"], gauges["decode_steps{kind=issued}"]) == (0, 2)
    assert tokens(engine) == wanted


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
def test_with_graphs_off_nothing_is_captured_and_the_answers_are_the_same(
    granite: Path, right: dict[Path, Right]
) -> None:
    wanted = expected(right, granite)
    graphs = RecordedGraphs()
    engine = start(granite, graphs, decode_graphs="off")
    assert engine.decode_steps == {"captured": 0, "issued": 2}
    assert tokens(engine) == wanted
    assert not graphs.captured
