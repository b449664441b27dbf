"""A step with prompts sends one buffer to its device and scans once a layer, whatever the prompts are."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import make_engine
from gate_cases import LARGE
from mamba_kernels import transfer
from mamba_server.engine.scheduling import admission
from mamba_server.wire import AddRequest, SamplingParams
from silent_kernels import silent_kernels
from testmodels.checkpoints import random_nemotron_h

MIXERS = 3
LENGTHS = [90, 1030, 777, 300, 512, 48, 1200, 650, 333, 801, 219, 460, 700, 96, 530, 240]
PLAIN = SamplingParams(max_tokens=40, ignore_eos=True)


class Sent:
    """Where in the code each tensor of the host was sent from."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.by: list[str] = []
        real = transfer.to_device

        def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
            self.by.append(Path(sys._getframe(1).f_code.co_filename).stem)
            return real(tensor, device)

        for module in [*sys.modules.values()]:
            if getattr(module, "to_device", None) is real:
                patch.setattr(module, "to_device", send)

    def during(self, work: Any) -> list[str]:
        self.by.clear()
        work()
        return sorted(self.by)


@pytest.mark.parametrize("state_dtype", ["float32", "float16"] if LARGE else ["float16"])
def test_a_step_of_16_ragged_prompts_scans_once_a_layer_and_sends_one_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_dtype: str
) -> None:
    assert sum(LENGTHS) == 7986
    engine = make_engine(
        random_nemotron_h(tmp_path / "model"), max_running_requests=17, chunked_prefill_tokens=8192,
        state_dtype=state_dtype, overlap=False, arena_bytes=128 << 20,
    )  # fmt: skip
    # All of them start in one step, which are more than do so while serving.
    engine.core.scheduler.admission.budget = None
    monkeypatch.setattr(admission, "MAX_STARTED", len(LENGTHS))
    runner: Any = engine.core._runner
    rng = random.Random(1)

    def add(*lengths: int) -> None:
        for length in lengths:
            prompt = [rng.randrange(6, 200) for _ in range(length)]
            assert engine.core.add(AddRequest(f"{length} {rng.random()}", prompt, PLAIN)) is None

    with silent_kernels() as launched:
        runner.warm_up(lambda *_: None)
        add(5)
        while not engine.core.scheduler.running:
            engine.core.step()
        sent = Sent(monkeypatch)
        steps: list[tuple[int, int]] = []
        batch_of = runner._batch_of

        def noted(host: Any, *rest: Any) -> Any:
            steps.append((len(host.positions), len(host.context_len)))
            return batch_of(host, *rest)

        monkeypatch.setattr(runner, "_batch_of", noted)
        launched.times.clear()
        add(*LENGTHS)
        # Beside the step's own integers: entries of the table of pages, and parameters of who is new.
        assert sent.during(engine.core.step) == ["packed_integers", "page_table", "sampling_batch"]
        assert steps == [(sum(LENGTHS) + 1, len(LENGTHS) + 1)]
        assert launched.times["_ssd_prefill"] == launched.times["_conv1d_prefill"] == MIXERS
        assert launched.times["_contribution"] == MIXERS
        assert not engine.core.failed_steps, engine.core.last_error
    engine.stream.close()
