"""A checkpoint of four bits on Triton's kernels says what the weights say that its numbers stand for."""

import random
from pathlib import Path
from typing import Any

import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE
from kernel_variants import late, variants
from mamba_kernels.dispatch.backend import TORCH
from mamba_kernels.four_bit import triton as four_bit
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.model.layers import hybrid
from mamba_server.wire import AddRequest
from testmodels.checkpoints import random_nemotron_h
from testmodels.quantized import METHODS, rewrite

CLOSE = 2e-4
"""Between log-probabilities: factors of NVFP4 are float32 in one and float64 in the other."""
EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "ME*-", "hidden_size": 64, "intermediate_size": 64, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
}  # fmt: skip


def requests() -> list[AddRequest]:
    rng = random.Random(3)
    stem = [rng.randrange(6, 200) for _ in range(40)]
    return [greedy(str(number), prompt, 3) for number, prompt in enumerate((stem[:5], stem, [*stem[:-4], 9]))]


def by_torch(checkpoint: Path) -> list[Answer]:
    """Answer each request alone, its whole prompt computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybrid, "backend_for", lambda *_: TORCH)
        engine = make_engine(checkpoint, dtype="float32", prefix_caching=False)
        return [run(engine, [each])[each.request_id, 0] for each in requests()]


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
@pytest.mark.parametrize("method", ["nvfp4", "gptq-zeros", "mxfp4"])
def test_answers_are_those_of_the_numbers_and_nothing_is_compiled_while_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)
    # Prompts of this size are to need two forms of tiles.
    monkeypatch.setattr(four_bit, "TILE_ROWS", ((1, 16), (17, 32)))
    plain = random_nemotron_h(tmp_path / "plain", **EXPERTS)
    checkpoint = rewrite(plain, tmp_path / "made", METHODS[method])
    engine = make_engine(checkpoint, dtype="float32", chunked_prefill_tokens=40, max_running_requests=5)
    device_side: Any = engine.core._runner
    with variants() as prepared:
        assert device_side.warm_up(lambda *_: None)
    with variants() as served:
        answers = run(engine, requests())
    assert [*late(served, prepared)] == []
    assert "product_kernel" in {name for name, *_ in served}
    for each, expected in zip(requests(), by_torch(checkpoint / "plain"), strict=True):
        answer = answers[each.request_id, 0]
        assert answer.tokens == expected.tokens
        for ours, theirs in zip(answer.logprobs, expected.logprobs, strict=True):
            assert abs(ours.logprob - theirs.logprob) < CLOSE
