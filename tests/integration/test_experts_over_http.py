"""Models with experts, asked as users ask: the real client, `mambaserve serve`, numbers of transformers."""

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import openai
import pytest
import torch

from eventually import wait_until
from matrix_size import LARGE
from servers import Server
from testmodels.checkpoints import (
    random_granite,
    random_multimodal_qwen3_5,
    random_nemotron_h,
    random_qwen3_next,
)
from testmodels.published_limits import follow_published_limits

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
NEMOTRON_3 = {
    "hybrid_override_pattern": "ME*EM-",
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
MODELS = {
    "granite": (random_granite, {"num_local_experts": 8, "num_experts_per_tok": 3}, "ExtraBufferLazy"),
    "nemotron-3": (random_nemotron_h, NEMOTRON_3, "NoBuffer"),
    "qwen3-next": (random_qwen3_next, {}, "ExtraBuffer"),
    "qwen3.5": (random_multimodal_qwen3_5, {"num_experts": 8, "stacked_experts": True}, "ExtraBuffer"),
}
SERVED = MODELS if LARGE else ("nemotron-3", "qwen3.5")
"""One model of each kind of recurrent layer; test_parity_with_transformers has all without HTTP."""


class Asked(NamedTuple):
    server: Server
    client: openai.OpenAI
    reference: torch.nn.Module

    def complete(self, prompt: list[int] | str, **fields: Any) -> Any:
        return self.client.completions.create(model=self.server.model, prompt=prompt, **{**GREEDY, **fields})

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.server.url}/metrics") as answer:
            return str(answer.read(), "utf-8")

    def truth(self, tokens: list[int]) -> torch.Tensor:
        """Return the log-probabilities [T, vocabulary] of what follows each token."""
        with torch.no_grad():
            return torch.log_softmax(
                self.reference(torch.tensor([tokens]), use_cache=False).logits[0].double(), -1
            )

    def check(self, prompt: list[int], choice: Any) -> None:
        """Compare along our own tokens: where two tie within the tolerance, either is right."""
        rows = self.truth([*prompt, *choice.token_ids])[len(prompt) - 1 : -1]
        for row, token, ours in zip(rows, choice.token_ids, choice.logprobs.token_logprobs, strict=True):
            assert abs(ours - row[token].item()) < TOLERANCE
            assert row.max() - row[token] < TOLERANCE


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Limit the reference to one thread, so that it does not compete with the server."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SERVED)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    from transformers import AutoModelForCausalLM

    write, fields, strategy = MODELS[request.param]
    path: Path = write(tmp_path_factory.mktemp("model") / request.param, shard="100KB", **fields)
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    follow_published_limits(reference)
    if reference.config.tie_word_embeddings:
        reference.lm_head.weight = reference.get_input_embeddings().weight
    options = (
        "--strategy",
        strategy,
        "--dtype",
        "float32",
        "--device-memory",
        "256Mi",
        "--track-interval",
        "64",
    )
    with (
        Server(path, *options) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield Asked(server, client, reference)


def prompt_of(length: int) -> list[int]:
    drawn = Random(length)
    return [drawn.randrange(250) for _ in range(length)]


def test_answers_at_once_say_what_transformers_says_and_a_second_turn_resumes(asked: Asked) -> None:
    prompts = [prompt_of(length) for length in (3, 40, 130)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: asked.complete(prompt, max_tokens=16, logprobs=1), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        asked.check(prompt, answer.choices[0])
    turn = [*prompts[-1], *answers[-1].choices[0].token_ids, *prompt_of(30)]
    second = asked.complete(turn, max_tokens=12, logprobs=1)
    assert len(prompts[-1]) // 2 < second.usage.prompt_tokens_details.cached_tokens < len(turn)
    asked.check(turn, second.choices[0])


def test_an_echoed_prompt_is_scored_as_transformers_scores_it(asked: Asked) -> None:
    prompt = prompt_of(90)
    first, *scores = (
        asked.complete(prompt, max_tokens=0, echo=True, logprobs=1).choices[0].logprobs.token_logprobs
    )
    truth = asked.truth(prompt)
    assert first is None
    assert scores == pytest.approx(
        [truth[at, token].item() for at, token in enumerate(prompt[1:])], abs=TOLERANCE
    )


def test_a_stream_says_what_the_whole_says_and_one_that_is_left_holds_nothing(asked: Asked) -> None:
    sampled = {"max_tokens": 30, "temperature": 0.8, "seed": 7}
    whole = asked.complete("Which of you knows?", **sampled).choices[0].text
    parts = asked.complete("Which of you knows?", stream=True, **sampled)
    assert "".join(part.choices[0].text for part in parts) == whole
    with asked.complete(prompt_of(60), max_tokens=1500, stream=True) as left:
        for _, _ in zip(range(4), left, strict=False):
            pass

    aborted = re.compile(
        r'^mambaserve_sequences_finished_total\{[^}]*reason="abort"[^}]*\} 1\.0$', re.MULTILINE
    )
    wait_until(lambda: aborted.search(asked.metrics()), "the end of the stream")
    ledger = asked.server.ledger()
    assert [ledger[name] for name in ("running", "slots_live", "slots_tracking", "pages_sequence")] == [0] * 4
