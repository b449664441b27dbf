"""The KL gate: what was said through the cache has the probability that a full prefill gives it.

Mean over generated tokens of exp(d) - 1 - d, d = log-probability from a full prefill after a flush minus the
one recorded at generation. The noise floor is the same number for an engine without prefix caching.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engines import Answer, make_engine, run
from gate_cases import CASES, LARGE, OTHER_THIRD, SQUARE, THIRD, Case
from mamba_server.cache.arena import AllocationSite
from mamba_server.engine.boot import Engine
from mamba_server.wire import AddRequest, SamplingParams, TokenLogprobs

MULTIPLE = 2.0
EPSILON = 1e-11
"""A log-probability near -10 is stored in steps of 1e-6; d of four steps gives 8e-12. A wrong state gives
above 1e-4 (see the last test)."""
FIRST, SECOND = 24, 16
Said = list[tuple[list[int], Answer]]


def sampled(name: str, prompt: list[int], outputs: int, seed: int) -> AddRequest:
    """Return parameters with temperature 1: a confident model would hide a wrong state."""
    return AddRequest(
        name,
        prompt,
        SamplingParams(max_tokens=outputs, temperature=1.0, seed=seed, logprobs=0, ignore_eos=True),
        turn_boundary=len(prompt) - 1,
    )


def talk(engine: Engine, vocabulary: int) -> Said:
    """Run two turns of eight conversations, four of them from one stem."""
    rng = random.Random(5)
    stem = [rng.randrange(vocabulary) for _ in range(150)]
    prompts = [[*stem, index] for index in range(4)]
    prompts += [[rng.randrange(vocabulary) for _ in range(n)] for n in (33, 64, 129, 200)]
    firsts = [sampled(f"a{i}", prompt, FIRST, i) for i, prompt in enumerate(prompts)]
    answers = run(engine, firsts)
    said = [(each.token_ids, answers[each.request_id, 0]) for each in firsts]
    seconds = [
        sampled(f"b{i}", [*prompt, *answer.tokens, 5, 6, 7], SECOND, 100 + i)
        for i, (prompt, answer) in enumerate(said)
    ]
    answers = run(engine, seconds)
    return said + [(each.token_ids, answers[each.request_id, 0]) for each in seconds]


class FullPrefills:
    """Log-probabilities of every token of a text, computed alone and uncached by `engine`.

    Once for each text: all cases are to say the same.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[int, ...], list[TokenLogprobs | None]] = {}

    def of(self, tokens: list[int]) -> list[TokenLogprobs | None]:
        if tuple(tokens) not in self._known:
            self._engine.core.cache.flush()
            params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
            name = f"check{len(self._known)}"
            check = run(self._engine, [AddRequest(name, tokens, params)])[name, 0]
            assert check.prompt_logprobs is not None
            assert check.cached_tokens == 0
            self._known[tuple(tokens)] = check.prompt_logprobs
        return self._known[tuple(tokens)]


def divergence(full: FullPrefills, said: Said) -> float:
    """Return the number that the gate limits."""
    terms = []
    for prompt, answer in said:
        truth = full.of([*prompt, *answer.tokens])[len(prompt) :]
        for token, recorded, scored in zip(answer.tokens, answer.logprobs, truth, strict=True):
            assert scored is not None
            assert recorded.token_id == scored.token_id == token
            d = scored.logprob - recorded.logprob
            terms.append(math.expm1(d) - d)
    return sum(terms) / len(terms)


OTHER_FAMILIES = ["lfm2_model", "olmo_hybrid_model"]
PARTS = {
    "random_model": (THIRD, OTHER_THIRD), "tiny_recall": (SQUARE[4:5], SQUARE[1:2]),
    "lfm2_model": (SQUARE[2:3], SQUARE[5:]), "olmo_hybrid_model": (SQUARE[:1], SQUARE[3:4]),
}  # fmt: skip
"""Cases without and with allocations that fail, by model: all for one, and the others share them."""
ROWS = [
    pytest.param(model, case, failing, id=f"{model}-{case}{'-allocations-fail' * failing}", marks=marks)
    for model in ([*PARTS, "latent_model"] if LARGE else PARTS)
    for failing in (False, True)
    for case in (CASES if LARGE else PARTS[model][failing])
    for marks in [pytest.mark.slow if model in OTHER_FAMILIES else ()]
]


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest) -> tuple[Path, int, float, FullPrefills]:
    """Return the model, its vocabulary, its noise floor, and an engine that caches nothing."""
    path = request.getfixturevalue(request.param)
    engine = make_engine(path, prefix_caching=False, max_running_requests=4)
    vocabulary = min(256, engine.model.vocab_size)
    said = talk(engine, vocabulary)
    assert not any(answer.cached_tokens for _, answer in said)
    floor = divergence(FullPrefills(engine), said)
    assert floor < 1e-9
    return path, vocabulary, floor, FullPrefills(make_engine(path))


def sometimes(seed: int) -> Callable[[AllocationSite], bool]:
    rng = random.Random(seed)
    return lambda _: rng.random() < 0.2


@pytest.mark.parametrize(("measured", "case", "failing"), ROWS, indirect=["measured"], scope="module")
def test_what_is_said_through_the_cache_is_as_likely_as_in_a_full_prefill(
    measured: tuple[Path, int, float, FullPrefills], case: Case, failing: bool
) -> None:
    path, vocabulary, floor, full = measured
    engine = case.boot(path, fail=sometimes(3) if failing else None)
    said = talk(engine, vocabulary)
    assert sum(answer.cached_tokens > 0 for _, answer in said[8:]) > 4
    found = divergence(full, said)
    assert found <= MULTIPLE * floor + EPSILON, (found, floor)


@pytest.mark.parametrize("model", ["tiny_recall", "random_model"] if LARGE else ["random_model"])
def test_float16_states_pass_the_gate(model: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    settings = {"state_dtype": "float16", "max_running_requests": 4}
    full = FullPrefills(make_engine(path, **settings))
    uncached = make_engine(path, prefix_caching=False, **settings)
    vocabulary = min(256, uncached.model.vocab_size)
    floor = divergence(full, talk(uncached, vocabulary))
    engine = Case("ExtraBuffer", True, 16, 64).boot(path, **settings)
    said = talk(engine, vocabulary)
    assert sum(answer.cached_tokens > 0 for _, answer in said[8:]) > 4
    found = divergence(full, said)
    assert 0 < found <= MULTIPLE * floor + EPSILON, (found, floor)
    assert floor < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "few"),
    [("random_model", THIRD), ("lfm2_model", SQUARE[1:2]), ("olmo_hybrid_model", SQUARE[5:])],
)
def test_bfloat16_passes_the_gate_with_its_own_noise(
    model: str, few: list[Case], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(model)
    settings = {"dtype": "bfloat16", "max_running_requests": 4}
    full = FullPrefills(make_engine(path, **settings))
    for case in CASES if LARGE else few:
        # Where chunks begin decides what is rounded: the noise is that of an engine with the same chunks.
        floor = divergence(full, talk(case.boot(path, prefix_caching=False, **settings), 256))
        said = talk(case.boot(path, **settings), 256)
        assert sum(answer.cached_tokens > 0 for _, answer in said[8:]) > 4
        found = divergence(full, said)
        assert found <= MULTIPLE * floor + EPSILON, (case, found, floor)


def test_a_state_in_the_wrong_slot_is_far_above_the_gate(random_model: Path) -> None:
    engine = Case("ExtraBuffer", True, 16, 64).boot(random_model)
    views = engine.core._runner._cache

    def spoil() -> None:
        slots = [node.slot for node in engine.core.cache.tree.walk() if node.slot]
        for view in (*views.conv, *views.ssm):
            view[slots] = view[[*slots[1:], slots[0]]].clone()

    rng = random.Random(8)
    prompts = [[rng.randrange(256) for _ in range(100)] for _ in range(4)]
    run(engine, [sampled(f"a{i}", prompt, 4, i) for i, prompt in enumerate(prompts)])
    spoil()
    again = [sampled(f"b{i}", [*prompt, 1], 8, i) for i, prompt in enumerate(prompts)]
    answers = run(engine, again)
    said = [(each.token_ids, answers[each.request_id, 0]) for each in again]
    assert divergence(FullPrefills(make_engine(random_model)), said) > 1e-4
