"""Steps with drafts by Triton's kernels: the answers are those without drafts."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engines import make_engine, run
from gate_cases import LARGE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.engine.boot import BootOverrides
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import AddRequest, SamplingParams
from scripted_drafts import ScriptedDrafts
from testmodels.checkpoints import random_granite, random_qwen3_next

GREEDY = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=8, temperature=0.8, seed=5, frequency_penalty=0.6, ignore_eos=True)


@pytest.mark.parametrize(
    ("write", "recurrent"),
    [(random_granite, "mamba"), *([(random_qwen3_next, "linear_attention")] if LARGE else [])],
)
def test_answers_with_drafts_are_those_without(
    write: Callable[..., Path], recurrent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Idle programs take the interpreter as long as others.
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    attention = "attention" if recurrent == "mamba" else "full_attention"
    model = write(tmp_path / "model", num_hidden_layers=2, layer_types=[recurrent, attention])
    requests = [AddRequest("a", list(range(7, 17)), GREEDY), AddRequest("b", list(range(20, 29)), SAMPLED)]
    sizes = {"max_running_requests": 2, "chunked_prefill_tokens": 64, "dtype": "float32"}
    expected = {key: answer.tokens for key, answer in run(make_engine(model, **sizes), requests).items()}

    def truth(sequence: Sequence, count: int) -> list[int]:
        return expected[sequence.key][sequence.outputs : sequence.outputs + count]

    drafts = ScriptedDrafts(3, truth, random.Random(2))
    engine = make_engine(
        model, trial=BootOverrides(drafts=drafts), speculation="ngram", speculative_tokens=3, **sizes
    )
    assert engine.kernels.name == "triton"
    answers = run(engine, requests)
    assert {key: answer.tokens for key, answer in answers.items()} == expected
    assert 0 < drafts.accepted < drafts.drafted
    assert drafts.absorbed
