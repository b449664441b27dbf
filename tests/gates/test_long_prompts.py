"""A prompt of 131,072 tokens in seven pieces, with a hit in the middle, is one pass of the same prompt."""

from pathlib import Path

import numpy as np
import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE
from testmodels.checkpoints import random_lfm2, random_qwen3_next

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not LARGE, reason="minutes of a processor"),
]

LENGTH = 131_072
PIECES = 7
OUTPUTS = 4
TOLERANCE = 1e-4
SCALED = {
    "rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0,
    "original_max_position_embeddings": LENGTH // 4,
}  # fmt: skip


def checkpoint(directory: Path, family: str) -> Path:
    longest = {"max_position_embeddings": LENGTH + 1024, "rope_parameters": SCALED}
    if family == "lfm2":
        return random_lfm2(directory, num_hidden_layers=2, layer_types=["conv", "full_attention"], **longest)
    return random_qwen3_next(directory, **longest)


def answer(path: Path, prompts: list[list[int]], piece: int) -> list[Answer]:
    """Answer prompts one after another in an engine that computes up to `piece` tokens in a step."""
    engine = make_engine(
        path, chunked_prefill_tokens=piece, max_model_len=LENGTH + 64, max_running_requests=1, page_size=64,
        arena_bytes=256 << 20,
    )  # fmt: skip
    requests = [greedy(f"{number}", prompt, OUTPUTS) for number, prompt in enumerate(prompts)]
    return [run(engine, [request])[request.request_id, 0] for request in requests]


@pytest.mark.parametrize("family", ["lfm2", "qwen3-next"])
def test_a_long_prompt_in_pieces_behind_a_hit_is_one_pass(family: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", family)
    prompt = np.random.default_rng(5).integers(6, 200, LENGTH).tolist()
    piece = -(-LENGTH // PIECES)
    half = prompt[: LENGTH // 2 + 100]
    *_, resumed = answer(path, [half, prompt], piece)
    [whole] = answer(path, [prompt], piece)
    [once] = answer(path, [prompt], LENGTH)
    assert resumed.cached_tokens >= LENGTH // 4, "the hit is in the middle"
    for got in (resumed, whole):
        assert got.tokens == once.tokens
        for ours, theirs in zip(got.logprobs, once.logprobs, strict=True):
            np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, rtol=0, atol=TOLERANCE)
