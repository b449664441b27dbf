"""Families say through the whole cache what transformers says in one pass: tokens and log-probabilities.

A ragged batch in float32, told twice so that the second time hits, with sequences preempted in between.
"""

import random
from collections.abc import Callable
from copy import deepcopy
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
    for case in (CASES if LARGE else (SQUARE[number % 6],))
]
"""Families with one case each, so that each case occurs, or with all."""


EXACT = ("lfm2", "qwen3.5")
"""Families that transformers computes wholly in float64 if told to: others have parts that stay float32."""
FP8_ROWS = [
    pytest.param(name, case, exact, id=f"{name}-{case}{'-float64' * exact}")
    for name in (FAMILIES if LARGE else EXACT[:1])
    for exact, cases in ((False, SQUARE if LARGE else []), (True, SQUARE[2:4] if LARGE else SQUARE[2:3]))
    for case in cases
    if (name in EXACT or not exact) and (name, case.page_size) != ("kimi-linear", 1)
]
"""Families whose pages are FP8, with their cases, and whether engine and transformers compute in float64.

Pages of one latent row have an odd number of bytes, and are refused.
"""


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Round rows to FP8 under the least powers of two with which none of their numbers exceeds 448."""
    x = x.float()
    mantissa, exponent = torch.frexp(x.abs().amax(-1, keepdim=True))
    power = torch.exp2((exponent - 9 + (mantissa > 0.875)).to(x.dtype))
    return (x / power).to(torch.float8_e4m3fn).to(x.dtype) * power


def round_keys_and_values(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> None:
    """Let transformers attend to keys and values of FP8, and where it has latent rows to these."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    latent = next((each for each in model.modules() if hasattr(each, "expand_kv")), None)
    if latent is not None:
        expand = type(latent).expand_kv

        def expand_rounded(self: Any, own: torch.Tensor, shared: torch.Tensor) -> Any:
            row = rounded_rows(torch.cat((own, shared), -1)).to(own.dtype)
            return expand(self, *row.split([own.shape[-1], shared.shape[-1]], -1))

        monkeypatch.setattr(type(latent), "expand_kv", expand_rounded)
        return
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend_to_rounded(
        module: Any, query: Any, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        return attend(
            module,
            query,
            rounded_rows(key).to(query.dtype),
            rounded_rows(value).to(query.dtype),
            *rest,
            **more,
        )

    assert model.config._attn_implementation == "sdpa"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", attend_to_rounded)


def requests(prefix: str) -> list[AddRequest]:
    """Return 12 ragged prompts, four of them from one stem."""
    rng = random.Random(3)
    stem = [rng.randrange(256) for _ in range(256)]
    prompts = [[rng.randrange(256) for _ in range(length)] for length in LENGTHS]
    prompts += [stem[:shared] + [rng.randrange(256) for _ in range(rng.randint(1, 40))] for shared in SHARED]
    return [greedy(f"{prefix}{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]


def check(model: torch.nn.Module, request: AddRequest, answer: Answer) -> None:
    """Compare along our own tokens: where two tie within the tolerance, either is right."""
    differences = distances(model, request, answer)
    assert differences.max() < TOLERANCE, (request.request_id, differences)


def distances(model: torch.nn.Module, request: AddRequest, answer: Answer) -> torch.Tensor:
    """Return by position how far our token is from the best, and our top 5 from transformers', [n, 6]."""
    text = torch.tensor([[*request.token_ids, *answer.tokens]])
    with torch.no_grad():
        logits = model(text, use_cache=False).logits[0, len(request.token_ids) - 1 : -1]
    truth = torch.log_softmax(logits.double(), -1)
    assert len(answer.tokens) == OUTPUTS
    best = truth.topk(5).values
    ours = torch.tensor([each.top_logprobs[:5] for each in answer.logprobs], dtype=torch.float64)
    behind = best[:, :1] - truth.gather(1, torch.tensor(answer.tokens)[:, None])
    return torch.cat((behind, (ours - best).abs()), 1)


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
    hits = sum(answers[request.request_id, 0].cached_tokens > 0 for request in wanted)
    assert hits >= min(len(SHARED), len(wanted))


@pytest.mark.parametrize(("pair", "case", "exact"), FP8_ROWS, indirect=["pair"], scope="module")
def test_pages_of_fp8_say_what_transformers_says_with_rounded_keys_and_values(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Any], case: Case, exact: bool
) -> None:
    """In float32 a number halfway between two of FP8 may become either, which changes what follows."""
    path, model = pair
    round_keys_and_values(monkeypatch, model)
    engine = case.boot(
        path, dtype="float32", max_running_requests=12, chunked_prefill_tokens=256,
        kv_cache_dtype="fp8_e4m3", exact=exact,
    )  # fmt: skip
    model = deepcopy(model).double() if exact else model
    rng, scheduler = random.Random(4), engine.core.scheduler
    for turn in "ab":
        wanted = requests(turn) if LARGE else requests(turn)[-3:]
        answers = run(
            engine, wanted, before_step=lambda _: rng.random() < 0.05 and scheduler.preempt_youngest()
        )
        said = torch.stack([distances(model, each, answers[each.request_id, 0]) for each in wanted])
        assert (said.max() if exact else said.mean()) < TOLERANCE
        assert said.max() < 0.1
    assert scheduler.counters.preemptions
    hits = sum(answers[request.request_id, 0].cached_tokens > 0 for request in wanted)
    assert hits >= min(len(SHARED), len(wanted))
