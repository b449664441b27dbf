"""Answers, scores and checkpoints with a ring are those of an engine that writes all states in each step.

Every family with recurrent states, strategy and both ways of stepping occur, by torch and by the C++ kernels
of each instruction set; the engine is preempted and changes its strategy on the way.
"""

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines import Answer, make_engine, run
from forced_instructions import BEST, FEWER_INSTRUCTIONS, forced_instructions
from gate_cases import LARGE, STRATEGIES
from mamba_kernels.kernel_choice import VARIABLE
from mamba_planner import UnusableInput
from mamba_server.engine import boot, state_replay
from mamba_server.engine.boot import Engine
from mamba_server.engine.state_replay import ReplayRule
from mamba_server.wire import AddRequest, SamplingParams
from prefix_of import prefix_of
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

Write = Callable[[Path], Path]
FAMILIES: dict[str, Write] = {
    "nemotron_h": random_nemotron_h,
    "qwen3_next": random_qwen3_next,
    "granite": random_granite,
    "falcon_h1": random_falcon_h1,
    "bamba": random_bamba,
    "mamba2": random_mamba2,
    "qwen3_5": random_qwen3_5,
    "olmo_hybrid": random_olmo_hybrid,
    "zamba2": random_zamba2,
    "kimi_linear": random_kimi_linear,
}


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch compute, or the C++ kernels with the instruction set that a test names."""
    name = getattr(request, "param", "torch")
    if name == "torch":
        monkeypatch.setenv(VARIABLE, "torch")
        yield
        return
    with forced_instructions(name):
        yield


def requests() -> list[AddRequest]:
    """Return ragged requests: greedy and sampled, with a seed, penalties, several answers and scores."""
    rng = random.Random(11)
    stem = [rng.randrange(256) for _ in range(40)]
    others = [rng.randrange(256) for _ in range(67)]
    greedy = SamplingParams(max_tokens=41, temperature=0.0, logprobs=2, ignore_eos=True)
    sampled = SamplingParams(max_tokens=38, temperature=0.9, top_p=0.95, seed=7, ignore_eos=True)
    penalized = SamplingParams(max_tokens=20, temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    return [
        AddRequest("greedy", stem[:1], greedy),
        AddRequest("both", [*stem, 3, 4], sampled, n=2),
        AddRequest("other", others, greedy),
        AddRequest("penalized", stem, penalized),
    ]


def start(path: Path, **settings: Any) -> Engine:
    sizes = {"track_interval": 32, "max_running_requests": 4, "state_dtype": "float32", "dtype": "float32"}
    return make_engine(path, **{**sizes, **settings})


def checkpoints(engine: Engine) -> dict[tuple[int, ...], list[torch.Tensor]]:
    """Return the state of each checkpoint by its text."""
    views = engine.core._runner._cache
    return {
        tuple(prefix_of(node).tolist()): [view[node.slot].clone() for view in (*views.conv, *views.ssm)]
        for node in engine.core.cache.tree.walk()
        if node.slot
    }


def check_equal(answers: dict[tuple[str, int], Answer], expected: dict[tuple[str, int], Answer]) -> None:
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer.tokens == expected[key].tokens, key
        scores, true = ([each.logprob for each in one.logprobs] for one in (answer, expected[key]))
        assert scores == true, key


def check_against_plain(model: Path, tokens: str, settings: dict[str, Any]) -> None:
    """Check a run with a ring of `tokens` against one without, and second turns behind both."""
    plain, ring = start(model, **settings), start(model, **settings, state_replay=tokens)
    assert ring.core.scheduler.rings is not None
    expected, answers = run(plain, requests()), run(ring, requests())
    check_equal(answers, expected)
    mine, theirs = checkpoints(ring), checkpoints(plain)
    assert mine.keys() == theirs.keys()
    for text, states in mine.items():
        for state, true in zip(states, theirs[text], strict=True):
            assert torch.equal(state, true), (len(text), "another state")
    again = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    texts = {request.request_id: request.token_ids for request in requests()}
    turns = [
        AddRequest(f"{name}-{index}+", [*texts[name], *answer.tokens, 7], again)
        for (name, index), answer in expected.items()
    ]
    true, resumed = run(plain, turns), run(ring, turns)
    check_equal(resumed, true)
    cached = [{key: answer.cached_tokens for key, answer in each.items()} for each in (true, resumed)]
    assert cached[0] == cached[1]
    assert sum(cached[0].values())


@pytest.mark.parametrize(
    ("family", "strategy", "tokens", "settings"),
    [
        ("nemotron_h", "NoBuffer", "8", {}),
        pytest.param("qwen3_next", "ExtraBufferLazy", "4", {"overlap": False}, marks=pytest.mark.slow),
        *(
            (family, strategy, tokens, {"overlap": overlap, "dtype": dtype})
            for family in (FAMILIES if LARGE else ())
            for strategy in STRATEGIES
            for tokens, overlap, dtype in (("16", True, "bfloat16"), ("2", False, "float32"))
        ),
    ],
)
def test_answers_and_checkpoints_with_a_ring_are_those_without(
    family: str, strategy: str, tokens: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    check_against_plain(FAMILIES[family](tmp_path / "model"), tokens, {"strategy": strategy, **settings})


@pytest.mark.parametrize(
    ("kernels", "family", "strategy", "tokens", "settings"),
    [
        (BEST, "nemotron_h", "ExtraBufferLazy", "8", {}),
        pytest.param("avx2", "qwen3_next", "NoBuffer", "4", {"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("avx512", "falcon_h1", "ExtraBuffer", "16", {"overlap": False}, marks=pytest.mark.slow),
        # Its layers are called one by one, and each channel has a decay.
        pytest.param(BEST, "kimi_linear", "ExtraBuffer", "2", {}, marks=pytest.mark.slow),
        *(
            (name, family, STRATEGIES[place % 3], tokens, {"overlap": place % 2 > 0, "dtype": dtype})
            for name in (BEST, *FEWER_INSTRUCTIONS)
            for place, family in enumerate(FAMILIES if LARGE else ())
            for tokens, dtype in (("16", "bfloat16"), ("2", "float32"))
        ),
    ],
    indirect=["kernels"],
)
def test_the_cpp_kernels_answer_with_a_ring_as_without(
    family: str, strategy: str, tokens: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    check_against_plain(FAMILIES[family](tmp_path / "model"), tokens, {"strategy": strategy, **settings})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "strategy", "overlap"),
    [
        ("torch", "ExtraBuffer", True),
        (BEST, "ExtraBuffer", True),
        *(("torch", each, False) for each in (STRATEGIES if LARGE else ())),
    ],
    indirect=["kernels"],
)
def test_a_preempted_sequence_and_a_change_of_strategy_lose_nothing_of_a_ring(
    strategy: str, overlap: bool, random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured rule of this device asks for three rows: steps change between both kinds."""
    monkeypatch.setattr(state_replay, "MEASURED", {"cpu": ReplayRule(4, least_rows=3)})
    settings = {"strategy": strategy, "overlap": overlap}
    expected = run(start(random_model, **settings, state_replay="off"), requests())
    engine = start(random_model, **settings)
    kinds = set()

    def visit(number: int) -> None:
        if number % 9 == 7:
            engine.core.scheduler.preempt_youngest()
        if number == 12:
            engine.core.change_strategy("ExtraBufferLazy")
        kinds.add(bool(engine.core.cache.batch.waiting.any()))

    answers = run(engine, requests(), before_step=visit)
    assert kinds == {True, False}
    assert engine.core.scheduler.counters.preemptions
    # What a preempted sequence has to compute again has other bits, with a ring and without.
    tokens = [{key: answer.tokens for key, answer in each.items()} for each in (answers, expected)]
    assert tokens[0] == tokens[1]


def divergence(engine: Engine, judge: Engine) -> float:
    """Return the number of the KL gate: what `engine` says, scored by full prefills of `judge`.

    The largest hundredth of the terms is left out: where two experts are tied but for a rounding, a single
    token may be computed by the other one, and its term exceeds the sum of all others.
    """
    rng, terms = random.Random(5), []
    wanted = [
        AddRequest(
            f"r{index}",
            [rng.randrange(256) for _ in range(30 + 7 * index)],
            SamplingParams(max_tokens=120, temperature=1.0, seed=index, logprobs=0, ignore_eos=True),
        )
        for index in range(4)
    ]
    scored = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    answers = run(engine, wanted)
    for request in wanted:
        answer = answers[request.request_id, 0]
        text = AddRequest(request.request_id, [*request.token_ids, *answer.tokens], scored)
        truth = run(judge, [text])[request.request_id, 0].prompt_logprobs
        assert truth is not None
        for said, true in zip(answer.logprobs, truth[len(request.token_ids) :], strict=True):
            assert true is not None
            terms.append(math.expm1(true.logprob - said.logprob) - (true.logprob - said.logprob))
    kept = sorted(terms)[: -(len(terms) // 100)]
    return sum(kept) / len(kept)


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
@pytest.mark.parametrize("family", FAMILIES)
def test_float16_states_that_are_rounded_once_in_several_tokens_stay_within_the_gate(
    family: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Fewer roundings, and so no more divergence than of states that each step rounds, but for chance."""
    model = FAMILIES[family](tmp_path / "model")
    judge = start(model, prefix_caching=False)
    replayed, plain = (
        divergence(start(model, state_dtype="float16", state_replay=tokens), judge)
        for tokens in ("16", "off")
    )
    record_property("replayed", replayed)
    record_property("plain", plain)
    assert 0 < replayed < 1e-5
    assert replayed < 2 * plain


@pytest.mark.slow
def test_an_answer_that_ends_on_a_page_leaves_its_last_state(random_model: Path) -> None:
    params = SamplingParams(max_tokens=33, temperature=0.0, ignore_eos=True)
    # 16 tokens of prompt and 33 of output: the last state is at a depth of 48, a whole number of pages.
    request = AddRequest("a", list(range(40, 56)), params)
    plain, ring = (
        start(random_model, strategy="NoBuffer", track_interval=1024, state_replay=tokens)
        for tokens in ("off", "16")
    )
    expected = run(plain, [request])["a", 0].tokens
    assert run(ring, [request])["a", 0].tokens == expected
    text = (*request.token_ids, *expected[:32])
    for mine, true in zip(checkpoints(ring)[text], checkpoints(plain)[text], strict=True):
        assert torch.equal(mine, true)


@pytest.mark.slow
def test_sequences_beyond_the_lanes_write_their_states_each_time(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "RING_LANES", 2)
    engine = start(random_model, state_replay="8")
    most = 0

    def visit(number: int) -> None:
        nonlocal most
        most = max(most, int((engine.core.cache.batch.lane >= 0).sum()))

    check_equal(run(engine, requests(), before_step=visit), run(start(random_model), requests()))
    assert most == 2


def test_a_ring_where_it_cannot_act_is_refused_at_the_start(random_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="state_replay 8 is refused for this model"):
        make_engine(random_lfm2(tmp_path), state_replay="8")
    for settings, why in (
        ({"page_size": 4, "track_interval": 32}, "with pages of 4 tokens, which 8 does not divide"),
        ({"speculation": "ngram"}, "with speculation ngram"),
        ({"batch_invariant": True}, "with batch_invariant"),
    ):
        with pytest.raises(ValueError, match=f"state_replay 8 is refused {why}"):
            start(random_model, state_replay="8", **settings)
