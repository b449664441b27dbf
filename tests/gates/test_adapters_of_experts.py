"""Adapters of experts in one batch with others: each row says what transformers says with merged weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import greedy, make_engine, run
from gate_cases import LARGE
from mamba_planner.adapter_bank import bank_bytes
from testmodels.adapters import merged, shapes_of, with_deltas, write_adapter, write_expert_adapter
from testmodels.checkpoints import random_kimi_linear, random_lfm2, random_qwen3_5, random_qwen3_next

pytestmark = pytest.mark.slow

OUTPUTS = 8
TOLERANCE = 1e-4
NARROW = {"moe_intermediate_size": 32}
FAMILIES: dict[str, tuple[Callable[..., Path], dict[str, Any], tuple[str, ...], str]] = {
    "qwen3-next": (random_qwen3_next, NARROW, ("gate_proj", "up_proj", "down_proj"), "shared_expert."),
    "qwen3.5": (
        random_qwen3_5, {"num_experts": 8, **NARROW}, ("gate_proj", "up_proj", "down_proj"), "shared_expert.",
    ),
    "kimi-linear": (random_kimi_linear, NARROW, ("w1", "w3", "w2"), "shared_experts."),
    "lfm2": (random_lfm2, {"num_experts": 8, **NARROW}, ("w1", "w3", "w2"), ""),
}  # fmt: skip
"""Writers of checkpoints, their fields, names of an expert's modules, and part of a shared expert's names."""


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("family", FAMILIES if LARGE else ["qwen3-next"])
def test_adapters_of_experts_equal_their_merged_weights(
    family: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("MAMBASERVE_KERNELS", kernels)
    write, fields, names, shared = FAMILIES[family]
    path = write(tmp_path / "base", **fields)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    deltas = {
        form: write_expert_adapter(tmp_path / form, model, form=form, seed=seed, names=names, size=0.1)
        for seed, form in enumerate(("each", "stacked", "turned"))
    }
    others = [name for name in shapes_of(model) if name.endswith("q_proj")]
    others += [
        name for name, _ in model.named_modules() if shared and shared in name and name.endswith("_proj")
    ]
    plain = write_adapter(tmp_path / "plain", shapes_of(model, others), seed=9, size=0.1)
    engine = make_engine(
        path, lora=tuple(f"{name}={tmp_path / name}" for name in (*deltas, "plain")), max_lora_rank=4,
        max_lora_expert_rank=4, chunked_prefill_tokens=64,
    )  # fmt: skip
    assert engine.bank is not None
    counted = bank_bytes(engine.model, "float32", places=5, rank=4, expert_rank=4)
    assert engine.bank.nbytes == counted == engine.plan.adapters_bytes
    fingerprints = {adapter.name: adapter.fingerprint for adapter in engine.adapters}
    prompts = {name: [1 + (index * 7 + 11 * number) % 90 for index in range(20 + 30 * number)]
               for number, name in enumerate((*deltas, "plain", ""))}  # fmt: skip
    requests = {
        name: greedy(name or "base", prompt, OUTPUTS, adapter=fingerprints.get(name, ""))
        for name, prompt in prompts.items()
    }
    answers = run(engine, [*requests.values()])
    for name, request in requests.items():
        answer = answers[request.request_id, 0]
        text = torch.tensor([[*request.token_ids, *answer.tokens]])
        own = merged(model, plain if name == "plain" else None)
        with own, with_deltas(model, deltas.get(name, {})), torch.no_grad():
            logits = model(text, use_cache=False).logits[0, len(request.token_ids) - 1 : -1]
        best = torch.log_softmax(logits.double(), -1).topk(5).values
        got = torch.tensor([scores.top_logprobs[:5] for scores in answer.logprobs], dtype=torch.float64)
        assert float((got - best).abs().max()) < TOLERANCE, name
