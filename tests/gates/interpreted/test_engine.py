"""The shipped model on Triton's kernels says what it says on torch's, through the cache and without it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE, Case
from mamba_kernels.dispatch.backend import TORCH
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_server.model.layers import hybrid
from mamba_server.wire import AddRequest, SamplingParams
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_next,
    random_zamba2,
)

CLOSE = 2e-5
"""Between log-probabilities of two orders of float32 sums; a wrong state moves them by more than 1e-2."""

CASES = [Case("ExtraBuffer", True, 16, 64), *([Case("NoBuffer", False, 1, 128)] if LARGE else [])]


def requests(prefix: str, tokens: int = 70) -> list[AddRequest]:
    """Return ragged requests, two from one stem of that many tokens: 70 take several chunks."""
    rng = random.Random(3)
    stem = [rng.randrange(6, 200) for _ in range(tokens)]
    prompts = [stem[:5], stem, [*stem[:-4], 9, 8, 7]]
    drawn = SamplingParams(
        max_tokens=3, temperature=1.0, seed=7, top_k=40, top_p=0.9, presence_penalty=0.5, logprobs=2
    )
    last = AddRequest(f"{prefix}2", prompts[2], drawn)
    return [*(greedy(f"{prefix}{index}", prompts[index], 3) for index in range(2)), last]


def same(got: Answer, expected: Answer) -> None:
    assert got.tokens == expected.tokens
    for ours, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert abs(ours.logprob - theirs.logprob) < CLOSE


@pytest.fixture(autouse=True, scope="module")
def few_splits() -> Iterator[None]:
    """Reduce the splits: idle programs take the interpreter as long as others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_attention, "PROGRAMS", 4)
        yield


def by_torch(checkpoint: Path, tokens: int = 70) -> list[Answer]:
    """Answer each request alone, its whole prompt computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybrid, "backend_for", lambda *_: TORCH)
        engine = make_engine(checkpoint, dtype="float32", prefix_caching=False)
        assert engine.kernels.name == "torch"
        return [run(engine, [each])[each.request_id, 0] for each in requests("t", tokens)]


@pytest.fixture(scope="module")
def truth(tiny_recall: Path) -> list[Answer]:
    return by_torch(tiny_recall)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tokens_and_log_probabilities_are_torchs_without_and_with_a_hit(
    tiny_recall: Path, truth: list[Answer], case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    engine = case.boot(tiny_recall)
    assert engine.kernels.name == "triton"
    first = run(engine, requests("a"))
    again = run(engine, requests("b"))
    assert sum(answer.cached_tokens > 0 for answer in again.values()) >= 2
    for index, expected in enumerate(truth):
        same(first[f"a{index}", 0], expected)
        same(again[f"b{index}", 0], expected)
    assert not [each for each in caplog.messages if "Triton" in each], "a reference computed"


def granite(path: Path) -> Path:
    """Return a model with experts and factors."""
    layers = ["mamba", "attention"]
    return random_granite(
        path, num_hidden_layers=2, layer_types=layers, num_local_experts=4, num_experts_per_tok=2
    )


def qwen3_next(path: Path) -> Path:
    """Return one with the delta rule, rotary positions, head norms and gated attention."""
    layers = ["linear_attention", "full_attention"]
    return random_qwen3_next(
        path, num_hidden_layers=2, layer_types=layers, num_experts=4, num_experts_per_tok=2,
        linear_key_head_dim=16, linear_value_head_dim=16,
    )  # fmt: skip


def olmo_hybrid(path: Path) -> Path:
    """Return one with negative eigenvalues, norms after attention, and joint norms of heads."""
    layers = ["linear_attention", "full_attention"]
    return random_olmo_hybrid(
        path, num_hidden_layers=2, layer_types=layers, linear_key_head_dim=12, linear_value_head_dim=16
    )


def lfm2(path: Path) -> Path:
    """Return one whose state is the window of a convolution, with experts behind a corrected choice."""
    layers = ["conv", "full_attention", "conv"]
    return random_lfm2(
        path, num_hidden_layers=3, layer_types=layers, conv_bias=True, num_experts=4, num_experts_per_tok=2,
        num_dense_layers=1,
    )  # fmt: skip


def nemotron_h(path: Path) -> Path:
    """Return one with experts in groups, a correction of their scores, and a squared ReLU."""
    return random_nemotron_h(
        path, hybrid_override_pattern="E-M", n_routed_experts=12, num_experts_per_tok=3, n_group=4,
        topk_group=2, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40,
        routed_scaling_factor=2.5,
    )  # fmt: skip


def latent_experts(path: Path) -> Path:
    """Return one whose experts work in a width of their own, beside a shared expert."""
    return random_nemotron_h(path, **{**LATENT_EXPERTS, "hybrid_override_pattern": "EM"})


def kimi_linear(path: Path) -> Path:
    """Return one with decays of single channels and attention to latent rows."""
    return random_kimi_linear(
        path, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "dense"], linear_num_heads=2, linear_head_dim=8,
    )  # fmt: skip


def zamba2(path: Path) -> Path:
    """Return one whose layers share a transformer block, with heads that are no power of two."""
    return random_zamba2(
        path, num_hidden_layers=2, layers_block_type=["hybrid", "hybrid"], num_mem_blocks=1,
        use_mem_rope=True, num_attention_heads=8, num_key_value_heads=8, use_shared_attention_adapter=True,
    )  # fmt: skip


def falcon_h1(path: Path) -> Path:
    """Return one whose mixers lie side by side, with a norm before the gate of its groups."""
    return random_falcon_h1(
        path, num_hidden_layers=1, mamba_rms_norm=True, mamba_norm_before_gate=True, mamba_n_groups=2
    )


COSTLY = [
    pytest.param(
        write, marks=pytest.mark.skipif(not LARGE, reason="eight CPU seconds: MAMBASERVE_GATES=large")
    )
    for write in (latent_experts, zamba2, kimi_linear, falcon_h1)
]


@pytest.mark.parametrize("write", [granite, lfm2, qwen3_next, olmo_hybrid, nemotron_h, *COSTLY])
def test_other_families_say_what_they_say_on_torch(
    write: Callable[[Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path)
    engine = make_engine(path, dtype="float32")
    assert engine.kernels.name == "triton"
    tokens = 70 if LARGE else 24
    got = run(engine, requests("a", tokens))
    for index, expected in enumerate(by_torch(path, tokens)):
        same(got[f"a{index}", 0], expected)
    assert not [each for each in caplog.messages if "Triton" in each], "a reference computed"
