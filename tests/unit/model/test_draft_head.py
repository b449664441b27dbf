"""The head of a checkpoint foresees what its published definition foresees, also behind a cached prefix."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engines import Engine, make_engine, run
from mamba_server.cache import Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import AddRequest, SamplingParams
from testmodels.checkpoints import add_draft_head, random_nemotron_h, random_qwen3_5, random_qwen3_next
from testmodels.draft_head import ReferenceHead, model_states

CASES: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "Qwen3-Next": (random_qwen3_next, {}),
    "Qwen3.5": (random_qwen3_5, {"tie_word_embeddings": True}),
    "Nemotron 3": (random_nemotron_h, {}),
}
Record = list[tuple[list[int], list[int], torch.Tensor]]
"""Known tokens, drafted tokens, and the hidden states that foresaw these."""


def recorded(engine: Engine) -> Record:
    """Return the list to which each draft of a lone sequence is added from now on."""
    drafts, head = engine.core.speculation.drafts, engine.core._runner._model.draft_head  # type: ignore[union-attr]
    record: Record = []
    states: list[torch.Tensor] = []
    propose, step = drafts.propose, head.step

    def proposed(decodes: list[Sequence]) -> dict[int, Tokens]:
        states.clear()
        result = propose(decodes)
        for index, tokens in result.items():
            record.append((decodes[index].known_token_ids().tolist(), tokens.tolist(), torch.cat(states)))
        return result

    def stepped(*arguments: Any) -> torch.Tensor:
        states.append(step(*arguments))
        return states[-1]

    drafts.propose, head.step = proposed, stepped
    return record


@pytest.mark.parametrize(
    ("write", "more"),
    [
        pytest.param(*case, id=name, marks=() if name == "Qwen3.5" else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_drafts_are_those_of_the_published_head(
    write: Callable[..., Path], more: dict[str, Any], tmp_path: Path
) -> None:
    model = add_draft_head(write(tmp_path / "model", **more), agrees=True)
    config = json.loads((model / "config.json").read_text())
    tensors = {name: t.double() for name, t in load_file(model / "model.safetensors").items()}
    reference, states = ReferenceHead(tensors, config), model_states(str(model))
    # Pieces of a prompt end within pages of 32 tokens, and at their ends.
    engine = make_engine(
        model, exact=True, speculation="mtp", speculative_tokens=3, page_size=32, track_interval=32,
        chunked_prefill_tokens=48, max_running_requests=2,
    )  # fmt: skip
    record = recorded(engine)
    prompt = np.random.default_rng(5).integers(0, 256, 101).tolist()
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    first = run(engine, [AddRequest("a", prompt, params)])["a", 0]
    again = run(engine, [AddRequest("b", [*prompt[:98], 7, 8], params)])["b", 0]

    assert (first.cached_tokens, again.cached_tokens) == (0, 96)
    assert len(record) > 4
    for known, drafted, hidden in record:
        tokens, true = reference.foresee(states(known[:-1]), known, len(drafted))
        assert drafted == tokens
        # Transformers computes norms in float32.
        torch.testing.assert_close(hidden, torch.stack(true), rtol=1e-5, atol=1e-5)
