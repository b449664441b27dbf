"""Every family says with adapters what transformers says with their weights merged, 16 of them in one batch.

Ragged prompts in float32, in pieces of 64 tokens, told twice so that the second time hits, with preemptions.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import Answer, greedy, run
from gate_cases import LARGE, SQUARE, Case
from mamba_planner.adapter_bank import bank_bytes
from mamba_server.wire import AddRequest
from testmodels.adapters import computed_projections, merged, shapes_of, untie, write_adapter
from testmodels.checkpoints import (
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_mamba2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_qwen3_next,
    random_zamba2,
)
from testmodels.published_limits import follow_published_limits

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
OUTPUTS = 12
ADAPTERS = 16
FAMILIES: dict[str, tuple[Callable[..., Path], dict[str, Any], float]] = {
    "mamba2": (random_mamba2, {}, 0.1),
    "bamba": (random_bamba, {}, 0.1),
    "falcon-h1": (random_falcon_h1, {}, 0.1),
    "granite": (random_granite, {}, 0.1),
    "lfm2": (random_lfm2, {"conv_bias": True}, 0.1),
    "nemotron-h": (random_nemotron_h, {}, 0.1),
    "olmo-hybrid": (random_olmo_hybrid, {"attention_bias": True}, 0.1),
    "qwen3.5": (random_qwen3_5, {}, 0.1),
    "qwen3.5-experts": (random_qwen3_5, {"num_experts": 8}, 0.1),
    "qwen3-next": (random_qwen3_next, {}, 0.1),
    # Larger changes in every use of a block cost digits: transformers is 2e-4 from its own float64.
    "zamba2": (random_zamba2, {}, 0.03),
    "zamba2-changes": (
        random_zamba2, {"use_shared_attention_adapter": True, "num_key_value_heads": 4}, 0.03,
    ),
    "kimi-linear": (random_kimi_linear, {}, 0.1),
}  # fmt: skip
"""Writers of checkpoints, their fields, and the size of the adapters' numbers."""


def check(model: torch.nn.Module, request: AddRequest, answer: Answer) -> None:
    text = torch.tensor([[*request.token_ids, *answer.tokens]])
    with torch.no_grad():
        logits = model(text, use_cache=False).logits[0, len(request.token_ids) - 1 : -1]
    best = torch.log_softmax(logits.double(), -1).topk(5).values
    got = torch.tensor([scores.top_logprobs[:5] for scores in answer.logprobs], dtype=torch.float64)
    assert float((got - best).abs().max()) < TOLERANCE, request.request_id


@pytest.mark.parametrize("case", SQUARE if LARGE else SQUARE[2:3], ids=str)
@pytest.mark.parametrize("family", FAMILIES if LARGE else ["mamba2", "zamba2-changes", "kimi-linear"])
def test_sixteen_adapters_in_one_batch_equal_their_merged_weights(
    family: str, case: Case, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    write, fields, size = FAMILIES[family]
    path = write(tmp_path / "base", **fields)
    model = untie(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval())
    follow_published_limits(model)
    shapes = shapes_of(model, computed_projections(model))
    adapters = [
        write_adapter(tmp_path / f"a{n}", shapes, seed=n, rank=4 + n % 5, size=size, use_rslora=n % 3 == 0)
        for n in range(ADAPTERS)
    ]
    engine = case.boot(
        path, dtype="float32", max_running_requests=ADAPTERS + 1, chunked_prefill_tokens=64,
        lora=tuple(f"a{number}={adapter}" for number, adapter in enumerate(adapters)), max_lora_rank=8,
    )  # fmt: skip
    assert engine.bank is not None
    counted = bank_bytes(engine.model, "float32", places=ADAPTERS + 1, rank=8)
    assert engine.bank.nbytes == counted
    rng, scheduler = random.Random(1), engine.core.scheduler
    prompts = [[rng.randrange(256) for _ in range(rng.randint(5, 150))] for _ in range(ADAPTERS + 1)]

    def sometimes_preempt(_: int) -> None:
        if rng.random() < 0.05:
            scheduler.preempt_youngest()

    fingerprints = [adapter.fingerprint for adapter in engine.adapters] + [""]
    for told in ("first", "again"):
        requests = [
            greedy(f"{told}{number}", prompt, OUTPUTS, adapter=fingerprint)
            for number, (prompt, fingerprint) in enumerate(zip(prompts, fingerprints, strict=True))
        ]
        answers = run(engine, requests, before_step=sometimes_preempt)
        for request, adapter in zip(requests, [*adapters, None], strict=True):
            with merged(model, adapter):
                check(model, request, answers[request.request_id, 0])
