"""Parity with transformers through the whole engine: greedy tokens and top-5 log-probabilities in float32."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import Answer, greedy, make_engine, run
from mamba_server.engine.scheduling.admission import Admission
from mamba_server.wire import AddRequest
from matrix_size import LARGE
from testmodels.checkpoints import (
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_mamba2,
    random_multimodal_qwen3_5,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_qwen3_next,
    random_zamba2,
)
from testmodels.published_limits import follow_published_limits

TOLERANCE = 1e-4
OUTPUTS = 64

SHAPES: dict[str, dict[str, Any]] = {
    "groups-1": {"hybrid_override_pattern": "M*-M", "n_groups": 1},
    "groups-8": {"hybrid_override_pattern": "M-*", "n_groups": 8},
    "tied": {"hybrid_override_pattern": "MM*-", "tie_word_embeddings": True},
    # Without attention_bias, which transformers ignores: it would write no biases of the attention.
    "biases": {
        "hybrid_override_pattern": "-M*M",
        "use_bias": True,
        "mlp_bias": True,
        "mamba_proj_bias": True,
    },
    "wide-state": {"hybrid_override_pattern": "M*M", "ssm_state_size": 64, "mamba_num_heads": 4},
    "no-conv-bias": {"hybrid_override_pattern": "*M-", "use_conv_bias": False},
    "many-attention": {"hybrid_override_pattern": "M**M-", "num_key_value_heads": 4},
    "experts": {
        "hybrid_override_pattern": "ME*E",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 40,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.7,
    },
}
OTHERS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "granite": (random_granite, {}),
    "granite-experts": (
        random_granite,
        {"num_local_experts": 8, "num_experts_per_tok": 3, "tie_word_embeddings": False},
    ),
    "mamba2": (random_mamba2, {}),
    "bamba": (random_bamba, {}),
    "falcon-h1": (random_falcon_h1, {}),
    "qwen3-next": (random_qwen3_next, {}),
    "qwen3.5": (random_qwen3_5, {}),
    "olmo-hybrid": (random_olmo_hybrid, {}),
    "lfm2": (random_lfm2, {}),
    "kimi-linear": (random_kimi_linear, {}),
    "zamba2": (
        random_zamba2,
        {"use_mem_rope": True, "use_shared_attention_adapter": True, "num_key_value_heads": 4},
    ),
    "lfm2-experts": (random_lfm2, {"num_experts": 8, "conv_bias": True}),
    "qwen3.5-experts": (random_multimodal_qwen3_5, {"num_experts": 8, "stacked_experts": True}),
}
ALL = (*SHAPES, *OTHERS)
SERVED = ALL if LARGE else ("biases", "experts", "mamba2", "falcon-h1", "qwen3-next", "lfm2-experts")
"""Each kind of layer once: tests/unit/model/test_parity.py compares every family without an engine."""


def requests(vocabulary: int, seed: int) -> list[AddRequest]:
    """Return 16 ragged prompts of 1 to 700 tokens, some sharing prefixes."""
    rng = random.Random(seed)
    stem = [rng.randrange(vocabulary) for _ in range(400)]
    lengths = [1, 2, 3, 17, 63, 64, 65, 130, 257, 700]
    prompts = [[rng.randrange(vocabulary) for _ in range(length)] for length in lengths]
    prompts += [
        stem[:shared] + [rng.randrange(vocabulary) for _ in range(rng.randint(1, 60))]
        for shared in (100, 129, 300, 300, 384, 400)
    ]
    return [greedy(f"r{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]


def check(model: torch.nn.Module, request: AddRequest, answer: Answer) -> None:
    """Compare along our own tokens, teacher-forced: where two tie within the tolerance, either is right."""
    text = torch.tensor([[*request.token_ids, *answer.tokens]])
    with torch.no_grad():
        logits = model(text, use_cache=False).logits[0, len(request.token_ids) - 1 : -1]
    truth = torch.log_softmax(logits.double(), -1)
    assert len(answer.tokens) == OUTPUTS
    for position, (token, ours) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        row = truth[position]
        assert row.max() - row[token] < TOLERANCE, (request.request_id, position)
        assert abs(ours.logprob - row[token].item()) < TOLERANCE, (request.request_id, position)
        best = row.topk(5).values
        for ranked, value in enumerate(ours.top_logprobs[:5]):
            assert abs(value - best[ranked].item()) < TOLERANCE, (request.request_id, position, ranked)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    # Seconds, which each process that only collects this module need not spend.
    from transformers import AutoModelForCausalLM

    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def get(name: str) -> tuple[Path, torch.nn.Module]:
        if name not in made:
            write, fields = OTHERS.get(name) or (random_nemotron_h, SHAPES[name])
            path = write(tmp_path_factory.mktemp(name), **fields)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
            follow_published_limits(model)
            if model.config.tie_word_embeddings:
                # The reference does not tie by itself: the file has no head of its own.
                model.lm_head.weight = model.get_input_embeddings().weight
            made[name] = (path, model)
        return made[name]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("shape", SERVED)
def test_sixteen_ragged_requests_at_once_say_what_transformers_says(checkpoint, shape: str) -> None:
    path, model = checkpoint(shape)
    engine = make_engine(path, dtype="float32", max_running_requests=16)
    wanted = requests(engine.model.vocab_size, seed=1)
    answers = run(engine, wanted)
    for request in wanted:
        check(model, request, answers[request.request_id, 0])


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "overlap"), [(64, True), (256, False), (4096, True)])
def test_chunked_prefill_and_overlap_change_nothing(checkpoint, budget: int, overlap: bool) -> None:
    path, model = checkpoint("groups-1")
    engine = make_engine(
        path, dtype="float32", max_running_requests=16, chunked_prefill_tokens=budget, overlap=overlap
    )
    wanted = requests(engine.model.vocab_size, seed=2)
    answers = run(engine, wanted)
    for request in wanted:
        check(model, request, answers[request.request_id, 0])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"])
def test_a_pool_so_small_that_sequences_are_preempted_changes_nothing(
    checkpoint, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    path, model = checkpoint("groups-1")
    slab = make_engine(path, dtype="float32").plan.slab_bytes

    # More at once than the arena can hold to their end.
    monkeypatch.setattr(Admission, "_fits_forecast", lambda *_: True)
    engine = make_engine(path, dtype="float32", strategy=strategy, max_model_len=800, arena_bytes=24 * slab)
    wanted = requests(engine.model.vocab_size, seed=3)
    answers = run(engine, wanted)
    assert engine.core.scheduler.counters.preemptions > 0
    for request in wanted:
        check(model, request, answers[request.request_id, 0])


@pytest.mark.slow
def test_served_together_equals_served_alone(checkpoint) -> None:
    path, _ = checkpoint("groups-8")
    wanted = requests(264, seed=4)
    together = run(make_engine(path, dtype="float32", max_running_requests=16), wanted)
    for request in wanted:
        alone = run(make_engine(path, dtype="float32"), [request])[request.request_id, 0]
        here = together[request.request_id, 0]
        for ours, theirs in zip(alone.logprobs, here.logprobs, strict=True):
            if ours.token_id != theirs.token_id:
                # Within the tolerance either is right, and from here on the texts differ.
                assert abs(ours.logprob - theirs.logprob) < TOLERANCE
                break
            assert abs(ours.logprob - theirs.logprob) < TOLERANCE
