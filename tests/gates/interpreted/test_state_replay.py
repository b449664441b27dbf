"""Prepared decode steps with a ring, repeated as graphs are, say what plain steps say, to the bit."""

from pathlib import Path

import pytest
import torch

from engines import Answer, make_engine, run
from gate_cases import LARGE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.boot import BootOverrides, Engine, ready_plan
from mamba_server.wire import AddRequest, SamplingParams
from recorded_work import RecordedGraphs
from testmodels.checkpoints import random_granite, random_qwen3_next


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the splits: idle programs take the interpreter as long as others."""
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)


def model(family: str, folder: Path) -> Path:
    if family == "granite":
        return random_granite(folder, num_hidden_layers=2, layer_types=["mamba", "attention"])
    return random_qwen3_next(
        folder, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"], linear_key_head_dim=16, linear_value_head_dim=16,
    )  # fmt: skip


def serve(engine: Engine) -> dict[tuple[str, int], Answer]:
    """Run two sequences that end at different depths: the last steps have a row of padding."""
    long = SamplingParams(max_tokens=6, temperature=0.0, logprobs=1, ignore_eos=True)
    short = SamplingParams(max_tokens=4, temperature=0.8, seed=3, logprobs=1, ignore_eos=True)
    return run(engine, [AddRequest("a", list(range(7, 18)), long), AddRequest("b", [20, 21, 22], short)])


@pytest.mark.timeout(900)
@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
@pytest.mark.parametrize(
    ("family", "state_dtype"), [("granite", "float32"), ("qwen3_next", "float32"), ("granite", "float16")]
)
def test_prepared_steps_with_a_ring_have_the_bits_of_plain_ones(
    family: str, state_dtype: str, tmp_path: Path
) -> None:
    path, graphs = model(family, tmp_path), RecordedGraphs()
    settings = {"max_running_requests": 3, "dtype": "float32", "state_dtype": state_dtype, "page_size": 4}
    settings |= {"track_interval": 4}
    plain = make_engine(path, **settings)
    ring = make_engine(path, trial=BootOverrides(graphs=graphs), **settings, state_replay="4")
    assert ready_plan(ring)["stateReplay"] == 4
    expected, answers = serve(plain), serve(ring)
    assert graphs.repeated > 4
    for key, answer in answers.items():
        assert answer.tokens == expected[key].tokens
        if state_dtype == "float32":
            assert [each.logprob for each in answer.logprobs] == [
                each.logprob for each in expected[key].logprobs
            ]
    if state_dtype == "float32":
        mine, theirs = ({node.depth: node.slot for node in each.core.cache.tree.walk() if node.slot}
                        for each in (ring, plain))  # fmt: skip
        assert mine
        assert mine.keys() == theirs.keys()
        for ours, true in zip(ring.core._runner._cache.ssm, plain.core._runner._cache.ssm, strict=True):
            assert all(torch.equal(ours[mine[depth]], true[theirs[depth]]) for depth in mine)
