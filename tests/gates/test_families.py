"""Families say through the whole cache what transformers says in one pass: tokens and log-probabilities.

A ragged batch in float32, told twice so that the second time hits, with sequences preempted in between.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import Answer, greedy, run
from gate_cases import CASES, LARGE, SQUARE, Case
from mamba_server.wire import AddRequest
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    random_kimi_linear,
    random_lfm2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_zamba2,
)
from testmodels.published_limits import follow_published_limits

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
OUTPUTS = 48
LENGTHS = (1, 2, 17, 63, 64, 65, 130, 300)
SHARED = (100, 129, 256, 256)
FAMILIES: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "qwen3.5": (random_qwen3_5, {}),
    "olmo-hybrid": (random_olmo_hybrid, {"attention_bias": True}),
    "olmo-hybrid-without-positions": (
        random_olmo_hybrid,
        {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "linear_num_key_heads": 6},
    ),
    "lfm2": (random_lfm2, {"conv_bias": True}),
    "lfm2-experts": (random_lfm2, {"num_experts": 8, "routed_scaling_factor": 1.7}),
    "latent-experts": (random_nemotron_h, LATENT_EXPERTS),
    "zamba2": (random_zamba2, {"use_mem_rope": True}),
    "kimi-linear": (random_kimi_linear, {}),
}
COSTLY = ("latent-experts",)
"""Families whose blocks other families have, too; their other tests suffice for a run on two cores."""
RUN = [name for name in FAMILIES if LARGE or name not in COSTLY]
ROWS = [
    pytest.param(name, case, id=f"{name}-{case}")
    for number, name in enumerate(RUN)
    for case in (CASES if LARGE else (SQUARE[number % 6], SQUARE[(number + 3) % 6]))
]
"""Families with two cases each, so that each case occurs, or with all."""


def requests(prefix: str) -> list[AddRequest]:
    """Return 12 ragged prompts, four of them from one stem."""
    rng = random.Random(3)
    stem = [rng.randrange(256) for _ in range(256)]
    prompts = [[rng.randrange(256) for _ in range(length)] for length in LENGTHS]
    prompts += [stem[:shared] + [rng.randrange(256) for _ in range(rng.randint(1, 40))] for shared in SHARED]
    return [greedy(f"{prefix}{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]


def check(model: torch.nn.Module, request: AddRequest, answer: Answer) -> None:
    """Compare along our own tokens: where two tie within the tolerance, either is right."""
    text = torch.tensor([[*request.token_ids, *answer.tokens]])
    with torch.no_grad():
        logits = model(text, use_cache=False).logits[0, len(request.token_ids) - 1 : -1]
    truth = torch.log_softmax(logits.double(), -1)
    assert len(answer.tokens) == OUTPUTS
    best = truth.topk(5).values
    for position, (token, ours) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        assert best[position, 0] - truth[position, token] < TOLERANCE, (request.request_id, position)
        got = torch.tensor(ours.top_logprobs[:5], dtype=torch.float64)
        torch.testing.assert_close(got, best[position], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    from transformers import AutoModelForCausalLM

    write, fields = FAMILIES[request.param]
    path = write(tmp_path_factory.mktemp("family"), **fields)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    follow_published_limits(model)
    return path, model


@pytest.mark.parametrize(("pair", "case"), ROWS, indirect=["pair"], scope="module")
def test_every_family_says_what_transformers_says_with_hits_and_preemptions(
    pair: tuple[Path, Any], case: Case
) -> None:
    path, model = pair
    engine = case.boot(path, dtype="float32", max_running_requests=12, chunked_prefill_tokens=256)
    rng, scheduler = random.Random(4), engine.core.scheduler

    def sometimes_preempt(_: int) -> None:
        if rng.random() < 0.05:
            scheduler.preempt_youngest()

    for turn in "ab":
        wanted = requests(turn)
        answers = run(
            engine, wanted, before_step=lambda _: rng.random() < 0.05 and scheduler.preempt_youngest()
        )
        for request in wanted:
            check(model, request, answers[request.request_id, 0])
    assert scheduler.counters.preemptions
    assert sum(answers[request.request_id, 0].cached_tokens > 0 for request in wanted) >= len(SHARED)
