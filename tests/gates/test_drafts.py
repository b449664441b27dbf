"""Answers, log-probabilities and checkpoints of an engine that checks drafts are those of one that does not.

Drafts are scripted: chance decides how many tokens of each are right. Every family, strategy and both ways of
stepping occur; the engine is preempted and changes its strategy on the way.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from engines import Answer, make_engine, run
from gate_cases import LARGE
from mamba_kernels.cpu import library as libraries
from mamba_kernels.cpu.library import open_library
from mamba_kernels.kernel_choice import INSTRUCTION_SETS, TORCH, VARIABLE, UnknownKernels
from mamba_server.engine.boot import BootOverrides, Engine
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import AddRequest, SamplingParams
from prefix_of import prefix_of
from scripted_drafts import ScriptedDrafts
from scripted_grammar import ScriptedGrammar
from testmodels.adapters import write_adapter
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

MOST = 5
Write = Callable[[Path], Path]
Answers = dict[tuple[str, int], Answer]
CASES = {
    "nemotron_h": (random_nemotron_h, "", {"strategy": "ExtraBufferLazy", "state_dtype": "float16"}),
    "nemotron_h-bfloat16": (random_nemotron_h, "", {"strategy": "NoBuffer", "dtype": "bfloat16"}),
    "nemotron_h-torch": (random_nemotron_h, TORCH, {"strategy": "ExtraBuffer", "overlap": False}),
    "granite": (random_granite, "avx2", {"strategy": "ExtraBuffer", "page_size": 4}),
    "falcon_h1": (random_falcon_h1, "avx512", {"strategy": "NoBuffer", "overlap": False}),
    "bamba": (random_bamba, "avx2", {"strategy": "ExtraBufferLazy", "overlap": False}),
    "mamba2": (random_mamba2, "avx512", {"strategy": "ExtraBuffer", "page_size": 1}),
    "qwen3_next": (random_qwen3_next, "", {"strategy": "ExtraBufferLazy"}),
    "qwen3_next-torch": (random_qwen3_next, TORCH, {"strategy": "NoBuffer"}),
    "qwen3_5": (random_qwen3_5, "avx2", {"strategy": "NoBuffer", "overlap": False}),
    "lfm2": (random_lfm2, "avx2", {"strategy": "ExtraBuffer"}),
    "lfm2-torch": (random_lfm2, TORCH, {"strategy": "ExtraBufferLazy", "overlap": False}),
    "olmo_hybrid": (random_olmo_hybrid, "avx512", {"strategy": "ExtraBuffer"}),
    "olmo_hybrid-torch": (random_olmo_hybrid, TORCH, {"strategy": "ExtraBufferLazy", "overlap": False}),
    "zamba2": (random_zamba2, "", {"strategy": "ExtraBufferLazy"}),
    "zamba2-torch": (random_zamba2, TORCH, {"strategy": "NoBuffer"}),
    "kimi_linear": (random_kimi_linear, "avx2", {"strategy": "ExtraBuffer"}),
    "kimi_linear-torch": (random_kimi_linear, TORCH, {"strategy": "NoBuffer", "overlap": False}),
}
"""Checkpoint, kernels (none named: the machine's own) and settings, by name."""
LANES = ("", "avx2", "avx512")
EVERY = {
    f"{name}-{lanes or 'own'}": (write, lanes, settings)
    for name, (write, kernels, settings) in CASES.items()
    if kernels != TORCH
    for lanes in LANES
}
SAME_MIXERS = ("bamba", "olmo_hybrid-torch", "zamba2-torch")
"""Cases of mixers that another family has with the same kernels, and whose settings others have."""
if LARGE:
    CASES = {name: case for name, case in CASES.items() if case[1] == TORCH} | EVERY
else:
    CASES = {name: case for name, case in CASES.items() if name not in SAME_MIXERS}


@pytest.fixture
def choose_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that names the kernels of engines; those that the CPU lacks are not used."""

    def choose(kernels: str) -> None:
        if kernels in INSTRUCTION_SETS:
            try:
                open_library({**os.environ, VARIABLE: kernels})
            except UnknownKernels:
                return
        if kernels:
            monkeypatch.setenv(VARIABLE, kernels)
            libraries.library.cache_clear()

    yield choose
    monkeypatch.undo()
    # Opening the library chooses its instructions for the whole process.
    libraries.library.cache_clear()
    libraries.library()


def requests() -> list[AddRequest]:
    """Return ragged requests: greedy and sampled, with a seed, penalties, several answers and scores."""
    rng = random.Random(11)
    stem = [rng.randrange(256) for _ in range(40)]
    others = [rng.randrange(256) for _ in range(67)]
    greedy = SamplingParams(max_tokens=41, temperature=0.0, logprobs=2, ignore_eos=True)
    sampled = SamplingParams(
        max_tokens=38, temperature=0.9, top_p=0.95, seed=7, min_tokens=4, ignore_eos=True
    )
    penalized = SamplingParams(max_tokens=20, temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    return [
        AddRequest("greedy", stem[:1], greedy),
        AddRequest("both", [*stem, 3, 4], sampled, n=2),
        AddRequest("other", others, greedy),
        AddRequest("penalized", stem, penalized),
    ]


def disturb(engine: Engine) -> Callable[[int], None]:
    """Return a visitor that preempts a sequence now and then, and changes the strategy once."""

    def visit(number: int) -> None:
        if number % 9 == 7:
            engine.core.scheduler.preempt_youngest()
        if number == 12:
            engine.core.change_strategy("ExtraBufferLazy")

    return visit


def start(path: Path, settings: dict[str, Any], drafts: ScriptedDrafts | None = None) -> Engine:
    more = {} if drafts is None else {"speculation": "ngram", "speculative_tokens": MOST}
    sizes = {"track_interval": 32, "max_running_requests": 4}
    return make_engine(path, trial=BootOverrides(drafts=drafts), **{**sizes, **settings}, **more)


def checkpoints(engine: Engine) -> dict[tuple[int, ...], list[torch.Tensor]]:
    """Return the state of each checkpoint by its text."""
    views = engine.core._runner._cache
    return {
        tuple(prefix_of(node).tolist()): [view[node.slot].clone() for view in (*views.conv, *views.ssm)]
        for node in engine.core.cache.tree.walk()
        if node.slot
    }


@pytest.mark.parametrize(("write", "kernels", "settings"), CASES.values(), ids=CASES)
def test_answers_and_checkpoints_with_drafts_are_those_without(
    write: Write,
    kernels: str,
    settings: dict[str, Any],
    tmp_path: Path,
    choose_kernels: Callable[[str], None],
) -> None:
    choose_kernels(kernels)
    exact = kernels != TORCH
    model = write(tmp_path / "model")
    plain = start(model, settings)
    expected = run(plain, requests())
    texts = {request.request_id: request.token_ids for request in requests()}

    def truth(sequence: Sequence, count: int) -> list[int]:
        answer = expected.get(sequence.key)
        return answer.tokens[sequence.outputs : sequence.outputs + count] if answer is not None else []

    drafts = ScriptedDrafts(MOST, truth, random.Random(3))
    engine = start(model, settings, drafts)
    answers = run(engine, requests())
    check_equal(answers, expected, exact=exact)
    assert drafts.accepted > 20
    assert drafts.drafted > drafts.accepted

    # The same checkpoints at the same depths: second prompts and second turns resume as much as without.
    mine, theirs = checkpoints(engine), checkpoints(plain)
    assert mine.keys() == theirs.keys()
    for text, states in mine.items():
        for state, true in zip(states, theirs[text], strict=True):
            if not exact:
                torch.testing.assert_close(state, true, rtol=1e-3, atol=1e-4)
            else:
                assert torch.equal(state, true), (len(text), "another state")
    again = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    turns = [
        AddRequest(f"{name}-{index}+", [*texts[name], *answer.tokens, 7], again)
        for (name, index), answer in expected.items()
    ]
    resumed = [run(each, turns) for each in (plain, engine)]
    cached = [{key: answer.cached_tokens for key, answer in each.items()} for each in resumed]
    assert cached[0] == cached[1]
    assert sum(cached[0].values())
    check_equal(resumed[1], resumed[0], exact=exact)


def check_equal(answers: Answers, expected: Answers, *, exact: bool) -> None:
    """Check tokens, scores and ends. `exact`: the kernels give a row the same bits alone and among others."""
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer.tokens == expected[key].tokens, key
        assert answer.finish_reason == expected[key].finish_reason
        scores = [each.logprob for each in answer.logprobs]
        true = [each.logprob for each in expected[key].logprobs]
        assert scores == (true if exact else pytest.approx(true, abs=1e-3)), key


class OfTen(ScriptedGrammar):
    """Grammar of 20 tokens, each of which is below 10."""

    def __init__(self) -> None:
        super().__init__(20)

    def fork(self, ends: frozenset[int] | None = None) -> "OfTen":
        return OfTen()

    def look_ahead(self) -> "OfTen":
        copy = OfTen()
        copy.length = self.length
        return copy

    def allowed(self, out: np.ndarray) -> None:
        out[:] = 0
        out[0] = 0x3FF


def test_a_tool_call_beside_an_answer_with_drafts_follows_its_own_grammar(random_model: Path) -> None:
    plain = requests()[0]
    call = AddRequest("call", list(range(60, 75)), SamplingParams(max_tokens=25, temperature=0.8, seed=3))

    def together(engine: Engine) -> dict[str, list[int]]:
        assert engine.core.add(call, OfTen()) is None  # type: ignore[arg-type]
        answers = run(engine, [plain])
        return {name: answer.tokens for (name, _), answer in answers.items()}

    settings = {"strategy": "ExtraBuffer"}
    expected = together(start(random_model, settings))
    assert max(expected["call"]) < 10

    def truth(sequence: Sequence, count: int) -> list[int]:
        return expected[sequence.request_id][sequence.outputs : sequence.outputs + count]

    drafts = ScriptedDrafts(MOST, truth, random.Random(4))
    assert together(start(random_model, settings, drafts)) == expected
    assert drafts.accepted > 10


@pytest.mark.parametrize("write", [random_nemotron_h, random_kimi_linear, random_zamba2])
def test_answers_with_adapters_beside_others_have_the_same_tokens_with_drafts(
    write: Write, tmp_path: Path
) -> None:
    model = write(tmp_path / "model")
    ends = ("in_proj.weight", "o_proj.weight", "kv_b_proj.weight", "layers.1.linear.weight")
    with safe_open(model / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.endswith(ends) and "shared" not in name]  # noqa: SIM118 - not a dict
        shapes = {name.removesuffix(".weight"): file.get_tensor(name).shape for name in names}
    adapter = write_adapter(tmp_path / "a", shapes, size=0.1)
    settings = {"strategy": "ExtraBuffer", "lora": (f"a={adapter}",), "max_lora_rank": 4}

    def adapted(engine: Engine) -> list[AddRequest]:
        first, *others = requests()
        (loaded,) = engine.adapters
        return [
            first,
            *others,
            AddRequest("adapted", first.token_ids, first.params, adapter=loaded.fingerprint),
        ]

    plain = start(model, settings)
    expected = run(plain, adapted(plain))
    assert expected["adapted", 0].tokens != expected["greedy", 0].tokens

    def truth(sequence: Sequence, count: int) -> list[int]:
        return expected[sequence.key].tokens[sequence.outputs : sequence.outputs + count]

    drafts = ScriptedDrafts(MOST, truth, random.Random(4))
    engine = start(model, settings, drafts)
    answers = run(engine, adapted(engine))
    assert {key: answer.tokens for key, answer in answers.items()} == {
        key: answer.tokens for key, answer in expected.items()
    }
    assert drafts.accepted > 20


@pytest.mark.parametrize("overlap", [True, False])
def test_a_preempted_sequence_and_a_change_of_strategy_lose_nothing_of_a_draft(
    overlap: bool, random_model: Path
) -> None:
    settings = {"strategy": "ExtraBuffer", "overlap": overlap}
    expected = run(start(random_model, settings), requests())

    def truth(sequence: Sequence, count: int) -> list[int]:
        return expected[sequence.key].tokens[sequence.outputs : sequence.outputs + count]

    drafts = ScriptedDrafts(MOST, truth, random.Random(4))
    engine = start(random_model, settings, drafts)
    answers = run(engine, requests(), before_step=disturb(engine))
    assert engine.core.scheduler.counters.preemptions
    assert {key: answer.tokens for key, answer in answers.items()} == {
        key: answer.tokens for key, answer in expected.items()
    }


def test_an_answer_that_ends_on_a_page_with_accepted_drafts_leaves_its_last_state(random_model: Path) -> None:
    params = SamplingParams(max_tokens=33, temperature=0.0, ignore_eos=True)
    # 16 tokens of prompt and 33 of output: the last state is at a depth of 48, a whole number of pages.
    request = AddRequest("a", list(range(40, 56)), params)
    plain = start(random_model, {"strategy": "NoBuffer", "overlap": False, "track_interval": 1024})
    expected = run(plain, [request])["a", 0].tokens

    class Right(ScriptedDrafts):
        """Drafts that are always right, up to the last token."""

        def propose(self, decodes: list[Sequence]) -> dict[int, Any]:
            true = [self._truth(sequence, self.most) for sequence in decodes]
            return {index: torch.tensor(tokens).numpy() for index, tokens in enumerate(true) if tokens}

    drafts = Right(MOST, lambda each, count: expected[each.outputs : each.outputs + count], random.Random(0))
    settings = {"strategy": "NoBuffer", "overlap": False, "track_interval": 1024}
    engine = start(random_model, settings, drafts)
    assert run(engine, [request])["a", 0].tokens == expected
    assert drafts.accepted > 20
    text = (*request.token_ids, *expected[:32])
    assert text in checkpoints(plain)
    for mine, true in zip(checkpoints(engine)[text], checkpoints(plain)[text], strict=True):
        assert torch.equal(mine, true)
