"""Steps: captured ones do what issued ones do, and none of them waits for the device."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from benchmarks.gpu import captured_step
from benchmarks.gpu.measured_model import measured_model
from benchmarks.gpu.models import NANO
from benchmarks.gpu.step_inputs import Piece, StepShape

from mamba_kernels.dispatch.operators import triton_operators
from mamba_server.engine.execution.decode_buckets import decode_buckets
from recorded_work import RecordedGraphs
from testmodels.no_sync import no_sync

pytestmark = pytest.mark.gpu
BUCKETS = decode_buckets(64)


@pytest.mark.parametrize("rows", BUCKETS)
def test_a_captured_step_does_what_an_issued_one_does(device: torch.device, rows: int) -> None:
    if device.type == "cuda":
        captured_step.check(rows, device, small=False)
    elif rows > 4:
        pytest.skip("a few rows are enough for what a graph is replaced by here")
    else:
        captured_step.compare(rows, device, RecordedGraphs(), small=True)


@contextlib.contextmanager
def waiting_is_an_error(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        with no_sync():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "shape",
    [
        StepShape((70, 5, 33)),
        StepShape(pieces=(Piece(64, track_every=64), Piece(65))),
        StepShape((17, 1), (Piece(3, done=64), Piece(1)), tracked=1),
    ],
)
def test_no_step_waits_for_the_device(device: torch.device, shape: StepShape) -> None:
    model = measured_model(NANO, [shape], triton_operators(), device, small=device.type == "cpu", blocks=1)
    with torch.inference_mode():
        model.model.hidden(model.arena.batch(shape, model.model.config.vocab_size), model.arena.views)
        batch = model.arena.batch(shape, model.model.config.vocab_size)
        with waiting_is_an_error(device):
            model.model.hidden(batch, model.arena.views)
