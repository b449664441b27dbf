"""Answers, scores, checkpoints and pages of an engine that drafts with the checkpoint's head.

They are those of an engine that does not, and the head's own keys, values and hidden states are the same
whether drafts were checked among them or not, and whether a text was computed or resumed.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines import make_engine, run
from forced_instructions import BEST, FEWER_INSTRUCTIONS, forced_instructions
from gate_cases import LARGE, STRATEGIES
from joined_engines import Joined, hand_over, joined
from mamba_planner import UnusableInput
from mamba_server.engine.boot import BootOverrides, Engine
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.wire import AddRequest, SamplingParams
from prefix_of import prefix_of
from scripted_drafts import ScriptedDrafts
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    add_draft_head,
    random_falcon_h1,
    random_multimodal_qwen3_5,
    random_nemotron_h,
    random_qwen3_5,
    random_qwen3_next,
)

Write = Callable[..., Path]
MODELS: dict[str, tuple[Write, dict[str, Any]]] = {
    "nemotron_h": (random_nemotron_h, {}),
    "nemotron_h-latent": (random_nemotron_h, LATENT_EXPERTS),
    "qwen3_next": (random_qwen3_next, {}),
    "qwen3_5": (random_qwen3_5, {}),
    "qwen3_5-experts": (random_qwen3_5, {"num_experts": 8}),
}
FEW: list[tuple[str, str, dict[str, Any]]] = [
    (BEST, "nemotron_h", {"strategy": "ExtraBufferLazy", "overlap": True, "state_dtype": "float16"}),
    ("avx2", "qwen3_next", {"strategy": "NoBuffer", "overlap": False, "page_size": 4}),
    ("avx512", "nemotron_h", {"strategy": "ExtraBuffer", "overlap": False, "dtype": "bfloat16"}),
]
ALL: list[tuple[str, str, dict[str, Any]]] = [
    (kernels, name, {"strategy": strategy, "overlap": overlap, "page_size": page_size, "dtype": dtype})
    for kernels, name, strategy, overlap, page_size, dtype in product(
        (BEST, *FEWER_INSTRUCTIONS), MODELS, STRATEGIES, (True, False), (1, 16), ("float32", "bfloat16")
    )
]
MATRIX = [
    pytest.param(
        kernels, name, settings, id="-".join(map(str, (kernels, name, *settings.values()))),
        marks=() if number == 0 else pytest.mark.slow,
    )
    for number, (kernels, name, settings) in enumerate(ALL if LARGE else FEW)
]  # fmt: skip
Pages = dict[tuple[int, ...], list[torch.Tensor]]


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute with the instruction set of the case."""
    with forced_instructions(request.param) as name:
        yield name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a checkpoint with a head once, by name."""
    directory, written = tmp_path_factory.mktemp("heads"), dict[str, Path]()

    def write(name: str) -> Path:
        if name not in written:
            writer, more = MODELS[name]
            written[name] = add_draft_head(writer(directory / name, **more), agrees=True)
        return written[name]

    return write


def requests() -> list[AddRequest]:
    """Return ragged requests: greedy and sampled, with several answers, scores and penalties."""
    rng = random.Random(11)
    stem, others = ([rng.randrange(256) for _ in range(count)] for count in (40, 67))
    greedy = SamplingParams(max_tokens=41, temperature=0.0, logprobs=2, ignore_eos=True)
    sampled = SamplingParams(max_tokens=38, temperature=0.5, top_p=0.95, seed=7, ignore_eos=True)
    penalized = SamplingParams(max_tokens=20, temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    return [
        AddRequest("greedy", stem[:1], greedy),
        AddRequest("both", [*stem, 3, 4], sampled, n=2),
        AddRequest("other", others, greedy),
        AddRequest("penalized", stem, penalized),
    ]


def start(path: Path, settings: dict[str, Any], drafts: Any = None, **more: Any) -> Engine:
    sizes = {"track_interval": 32, "max_running_requests": 4}
    return make_engine(path, trial=BootOverrides(drafts=drafts), **{**sizes, **settings, **more})


def heads(path: Path, settings: dict[str, Any], drafts: Any = None) -> Engine:
    return start(path, settings, drafts, speculation="mtp", speculative_tokens=4)


def counters(engine: Engine) -> dict[str, float]:
    assert engine.core.speculation is not None
    return engine.core.speculation.drafts.counters()


def views(engine: Engine) -> Any:
    return engine.core._runner._cache


def checkpoints(engine: Engine) -> Pages:
    """Return the state of each checkpoint by its text."""
    cache = views(engine)
    return {
        tuple(prefix_of(node).tolist()): [view[node.slot].clone() for view in (*cache.conv, *cache.ssm)]
        for node in engine.core.cache.tree.walk()
        if node.slot
    }


def pages_of_head(engine: Engine) -> Pages:
    """Return keys and values, and the last hidden state, of the head for each cached page, by its text."""
    cache, size, pages = views(engine), engine.core.cache.capacity.page_size, Pages()
    for node in engine.core.cache.tree.walk():
        text = prefix_of(node).tolist()
        for number, page in enumerate(node.pages.tolist()):
            end = len(text) - (len(node.pages) - number - 1) * size
            pages[tuple(text[:end])] = [cache.kv[-1][page].clone(), cache.tails[page].clone()]
    return pages


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("kernels", "name", "settings"), MATRIX, indirect=["kernels"])
def test_answers_checkpoints_and_hits_are_those_without_drafts(
    model: Callable[[str], Path], name: str, settings: dict[str, Any]
) -> None:
    # Steps with drafts do not overlap. Where others do, another of two answers may leave its state there.
    plain, engine = start(model(name), {**settings, "overlap": False}), heads(model(name), settings)
    expected, answers = run(plain, requests()), run(engine, requests())

    for key, answer in expected.items():
        assert answers[key].tokens == answer.tokens, key
        assert [each.logprob for each in answers[key].logprobs] == [each.logprob for each in answer.logprobs]
    counted = counters(engine)
    assert counted["draft_tokens_total{kind=mtp}"] > counted["accepted_draft_tokens_total{kind=mtp}"] > 20
    mine, theirs = checkpoints(engine), checkpoints(plain)
    assert mine.keys() == theirs.keys()
    # Beside other rows, a state of the gated delta rule may differ in its last bit, without drafts as well.
    exact = name.startswith("nemotron")
    rtol, atol = (0.0, 0.0) if exact else (1e-4, 1e-5)
    for text, states in mine.items():
        for pair in zip(states, theirs[text], strict=True):
            torch.testing.assert_close(*pair, rtol=rtol, atol=atol)
    texts = {request.request_id: request.token_ids for request in requests()}
    again = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    turns = [
        AddRequest(f"{name}-{index}+", [*texts[name], *answer.tokens, 7], again)
        for (name, index), answer in expected.items()
    ]
    resumed = [run(each, turns) for each in (plain, engine)]
    cached, tokens = (
        [{key: getattr(answer, field) for key, answer in each.items()} for each in resumed]
        for field in ("cached_tokens", "tokens")
    )
    assert cached[0] == cached[1]
    assert sum(cached[0].values())
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_pages_of_the_head_do_not_depend_on_what_was_drafted(
    model: Callable[[str], Path], overlap: bool
) -> None:
    settings = {"strategy": "ExtraBuffer", "overlap": overlap, "state_dtype": "float32"}
    none = ScriptedDrafts(4, lambda *_: [], random.Random(1))
    none.propose = lambda _: {}  # type: ignore[method-assign]
    engines = heads(model("nemotron_h"), settings, none), heads(model("nemotron_h"), settings)
    for engine in engines:
        run(engine, requests())
    true, mine = map(pages_of_head, engines)

    assert counters(engines[1])["accepted_draft_tokens_total{kind=mtp}"] > 20
    assert true.keys() == mine.keys()
    assert any(len(text) > 80 for text in true)
    for text, parts in true.items():
        assert all(torch.equal(*pair) for pair in zip(mine[text], parts, strict=True)), len(text)


def test_the_pages_of_the_head_behind_a_hit_are_those_of_a_text_that_was_computed(
    model: Callable[[str], Path],
) -> None:
    settings = {"strategy": "NoBuffer", "overlap": False, "page_size": 16}
    text = np.random.default_rng(3).integers(0, 256, 96).tolist()
    last = SamplingParams(max_tokens=1, temperature=0.0)
    computed, resumed = (heads(model("qwen3_next"), settings) for _ in range(2))
    run(computed, [AddRequest("whole", [*text, 1], last)])
    run(resumed, [AddRequest("part", [*text[:64], 1], last)])
    hit = run(resumed, [AddRequest("whole", [*text, 1], last)])["whole", 0]
    true, mine = pages_of_head(computed)[tuple(text)], pages_of_head(resumed)[tuple(text)]

    assert hit.cached_tokens == 64
    for pair in zip(mine, true, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_state_that_another_engine_computed_brings_the_pages_of_its_head(
    model: Callable[[str], Path],
) -> None:
    settings = {"strategy": "ExtraBuffer", "page_size": 16}
    prompts = [request for request in requests() if request.request_id in ("other", "penalized")]
    expected = run(heads(model("nemotron_h"), settings), prompts)
    prefill, decode = (Joined(heads(model("nemotron_h"), settings)) for _ in range(2))
    with joined(prefill, decode):
        answers = hand_over(prefill, decode, prompts)
        assert {key: each.tokens for key, each in answers.items()} == {
            key: each.tokens for key, each in expected.items()
        }
        mine, theirs = pages_of_head(decode.engine), pages_of_head(prefill.engine)
        shared = mine.keys() & theirs.keys()
        assert max(map(len, shared)) == 64
        for text in shared:
            assert all(torch.equal(*pair) for pair in zip(mine[text], theirs[text], strict=True))


@pytest.mark.slow
def test_the_head_of_a_multimodal_checkpoint_drafts(tmp_path: Path) -> None:
    path = add_draft_head(random_multimodal_qwen3_5(tmp_path), agrees=True)
    request = requests()[2]
    expected = run(start(path, {"overlap": False}), [request])
    engine = heads(path, {"overlap": False})
    assert run(engine, [request])["other", 0].tokens == expected["other", 0].tokens
    assert counters(engine)["accepted_draft_tokens_total{kind=mtp}"] > 0


def test_a_checkpoint_without_a_head_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="has no head for drafts"):
        start(random_nemotron_h(tmp_path / "none"), {}, speculation="mtp")
    with pytest.raises(UnusableInput, match="speculation mtp is refused for falcon_h1"):
        start(random_falcon_h1(tmp_path / "other"), {}, speculation="mtp")
