"""Requests whose prompts are handed over, and the comparison of their answers with those of one engine."""

from __future__ import annotations

import random

import msgspec

from engines import Answer, greedy
from joined_engines import Joined
from mamba_server.wire import AddRequest, SamplingParams

OUTPUTS = 10
Answers = dict[tuple[str, int], Answer]


def prompts_of(seed: int) -> list[AddRequest]:
    """Return ragged prompts around the page sizes: some of one stem, one drawn, one with two choices."""
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(150)]
    prompts = [[rng.randrange(256) for _ in range(n)] for n in (1, 16, 17, 33, 64, 65, 66, 130)]
    prompts += [stem[:shared] + [rng.randrange(256) for _ in range(9)] for shared in (100, 129, 150)]
    out = [greedy(f"r{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]
    drawn = SamplingParams(
        max_tokens=OUTPUTS, temperature=1.0, top_p=0.9, seed=7, logprobs=5, ignore_eos=True
    )
    out.append(AddRequest("drawn", stem, drawn))
    out.append(AddRequest("two", [*stem[:70], 1, 2], drawn, n=2))
    return out


def handed(request: AddRequest) -> AddRequest:
    """Return the request as a gateway sends it to a prefill engine."""
    return msgspec.structs.replace(request, hand_over=True, n=1)


def warm_up(engine: Joined, requests: list[AddRequest]) -> None:
    """Let the engine answer the beginnings of the prompts, so that it has some of them cached."""
    engine.run(
        *(
            greedy(f"warm{index}", list(request.token_ids)[: len(request.token_ids) * 2 // 3], 2)
            for index, request in enumerate(requests)
            if len(request.token_ids) > 2
        )
    )


def assert_same_bits(got: Answers, expected: Answers) -> None:
    """Compare tokens and log-probabilities."""
    assert got.keys() == expected.keys()
    for key, answer in expected.items():
        assert got[key].tokens == answer.tokens, key
        for position, (ours, theirs) in enumerate(zip(got[key].logprobs, answer.logprobs, strict=True)):
            assert ours == theirs, (key, position)
