"""Sampled answers with drafts are distributed as without: chi-square on the shipped model.

The two sides sample with different seeds, so that equal bits prove nothing here. Drafts follow the greedy
answer, which is right as long as the sampled text has not gone elsewhere.
"""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engines import make_engine, run
from gate_cases import LARGE
from mamba_server.cache import Tokens
from mamba_server.engine.boot import BootOverrides, Engine
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts
from mamba_server.wire import AddRequest, SamplingParams

TOKENS = 1_000_000
"""Sampled tokens of each side."""
LENGTH = 20
AT_ONCE = 64
DRAFTS = 4
TEMPERATURE = 1.7
RAREST = 10
"""Fewest tokens of a kind on both sides together: rarer ones are counted together."""
QUESTIONS = (
    "Repeat: red fox blue owl", "Count from 3 to 9.", "lamp: red\nWhat is lamp?", "Repeat: silver moon",
)  # fmt: skip
Counts = dict[tuple[int, int], Counter[int]]
"""Tokens by prompt and place in the answer."""


class Likely(NgramDrafts):
    """Drafts of the greedy answer's tokens; they count what becomes of them as other drafts do."""

    def __init__(self, answers: list[list[int]]) -> None:
        super().__init__(DRAFTS, 16, always=True)
        self._answers = answers

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        if any(sequence.in_flight for sequence in decodes):
            return {}
        tokens = [self._answers[int(each.request_id)][each.outputs :][:DRAFTS] for each in decodes]
        return {index: np.array(some, np.int32) for index, some in enumerate(tokens) if some}


def sample(engine: Engine, prompts: list[list[int]], rounds: range) -> Counts:
    """Count the tokens of `AT_ONCE` answers to each prompt and round."""
    counts: Counts = defaultdict(Counter)
    for number in rounds:
        requests = [
            AddRequest(
                f"{prompt}", tokens, n=AT_ONCE,
                params=SamplingParams(
                    max_tokens=LENGTH, temperature=TEMPERATURE, ignore_eos=True,
                    seed=(number * len(prompts) + prompt) * AT_ONCE,
                ),
            )
            for prompt, tokens in enumerate(prompts)
        ]  # fmt: skip
        for (prompt, _), answer in run(engine, requests).items():
            for place, token in enumerate(answer.tokens):
                counts[int(prompt), place][token] += 1
    return counts


def unlikeliness(one: Counts, other: Counts, place: int) -> float:
    """Return the probability that two samples of one distribution differ as much at a place, all prompts."""
    statistic, degrees = 0.0, 0
    for prompt in range(len(QUESTIONS)):
        left, right = one[prompt, place], other[prompt, place]
        kinds = [token for token in {*left, *right} if left[token] + right[token] >= RAREST]
        pairs = [(left[token], right[token]) for token in kinds]
        rare = tuple(side.total() - sum(side[token] for token in kinds) for side in (left, right))
        pairs += [rare] if sum(rare) >= RAREST else []
        # Both sides are of equal size, so half of each kind is expected on either.
        statistic += sum((a - b) ** 2 / (a + b) for a, b in pairs)
        degrees += len(pairs) - 1
    half = torch.tensor([max(1, degrees), statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.skipif(not LARGE, reason="a million tokens: MAMBASERVE_GATES=large")
@pytest.mark.timeout(7200)
def test_sampled_answers_with_drafts_are_distributed_as_without(tiny_recall: Path) -> None:
    encode = Tokenizer.from_file(str(tiny_recall / "tokenizer.json")).encode
    prompts = [list(encode(f"<|user|>{text}<|end|><|assistant|>").ids) for text in QUESTIONS]
    plain = make_engine(tiny_recall, max_running_requests=AT_ONCE)
    greedy = SamplingParams(max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
    likely = run(plain, [AddRequest(f"{at}", tokens, greedy) for at, tokens in enumerate(prompts)])
    drafts = Likely([likely[f"{at}", 0].tokens for at in range(len(prompts))])
    drafted = make_engine(
        tiny_recall, trial=BootOverrides(drafts=drafts), speculation="ngram", speculative_tokens=DRAFTS,
        max_running_requests=16,
    )  # fmt: skip
    rounds = TOKENS // (AT_ONCE * LENGTH * len(prompts))
    one = sample(plain, prompts, range(rounds))
    other = sample(drafted, prompts, range(rounds, 2 * rounds))

    worst = min(unlikeliness(one, other, place) for place in range(LENGTH))
    counted = drafts.counters()
    accepted = counted["accepted_draft_tokens_total{kind=ngram}"]
    print(f"{rounds} rounds, {accepted:.0f} drafts accepted: {counted}, p = {worst:.4f}")
    assert accepted > TOKENS // 10
    assert worst * LENGTH > 0.001
