"""Answers, scores and hits of an engine for which a second model drafts are those without drafts.

The draft model is the model itself, whose drafts are nearly all right, or another one, whose drafts are
nearly all wrong: with or without recurrent layers, of another family, of a larger or smaller embedding. On
the way sequences are preempted and aborted, and prompts resume from the cache.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engines import Answer, make_engine, run
from forced_instructions import BEST, FEWER_INSTRUCTIONS, forced_instructions
from gate_cases import LARGE, STRATEGIES
from mamba_server.engine.boot import Engine
from mamba_server.engine.speculation.model_drafts import ModelDrafts
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.wire import AbortRequest, AddRequest, SamplingParams
from testmodels.checkpoints import VOCAB, random_falcon_h1, random_nemotron_h, random_qwen3_next

Write = Callable[..., Path]
MODELS: dict[str, tuple[Write, dict[str, Any]]] = {
    "nemotron_h": (random_nemotron_h, {}),
    "other": (random_nemotron_h, {"seed": 5, "vocab_size": VOCAB + 24}),
    "attention": (random_nemotron_h, {"seed": 6, "hybrid_override_pattern": "*-*-", "num_hidden_layers": 4}),
    "qwen3_next": (random_qwen3_next, {}),
    "falcon_h1": (random_falcon_h1, {}),
}
FEW: list[tuple[str, str, str, dict[str, Any]]] = [
    ("avx512", "nemotron_h", "attention", {"strategy": "ExtraBufferLazy", "overlap": True, "page_size": 4}),
    ("avx2", "qwen3_next", "other", {"strategy": "ExtraBuffer", "overlap": True}),
    (BEST, "other", "falcon_h1", {"strategy": "NoBuffer", "overlap": True, "dtype": "bfloat16"}),
]
ALL: list[tuple[str, str, str, dict[str, Any]]] = [
    (kernels, name, draft, {"strategy": strategy, "overlap": overlap, "page_size": page, "dtype": dtype})
    for kernels, name, draft, strategy, overlap, page, dtype in product(
        (BEST, *FEWER_INSTRUCTIONS), MODELS, MODELS, STRATEGIES, (True, False), (1, 16),
        ("float32", "bfloat16"),
    )
]  # fmt: skip
MATRIX = [
    pytest.param(
        kernels, name, draft, settings, id="-".join(map(str, (kernels, name, draft, *settings.values()))),
        marks=pytest.mark.slow,
    )
    for kernels, name, draft, settings in (ALL if LARGE else FEW)
]  # fmt: skip


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute with the instruction set of the case."""
    with forced_instructions(request.param) as name:
        yield name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a checkpoint once, by name."""
    directory, written = tmp_path_factory.mktemp("drafting"), dict[str, Path]()

    def write(name: str) -> Path:
        if name not in written:
            writer, more = MODELS[name]
            written[name] = writer(directory / name, **more)
        return written[name]

    return write


def requests() -> list[AddRequest]:
    """Return ragged requests: greedy and sampled, with several answers, scores and penalties."""
    rng = random.Random(11)
    stem, others = ([rng.randrange(256) for _ in range(count)] for count in (40, 67))
    greedy = SamplingParams(max_tokens=41, temperature=0.0, logprobs=2, ignore_eos=True)
    sampled = SamplingParams(max_tokens=38, temperature=0.8, top_p=0.95, seed=7, ignore_eos=True)
    penalized = SamplingParams(max_tokens=20, temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    return [
        AddRequest("greedy", stem[:1], greedy),
        AddRequest("both", [*stem, 3, 4], sampled, n=2),
        AddRequest("other", others, greedy),
        AddRequest("penalized", stem, penalized),
    ]


def start(path: Path, settings: dict[str, Any], **more: Any) -> Engine:
    return make_engine(path, **{"track_interval": 32, "max_running_requests": 4, **settings, **more})


def drafting(path: Path, draft: Path, settings: dict[str, Any]) -> Engine:
    return start(path, settings, speculation=f"draft={draft}", speculative_tokens=4)


def source(engine: Engine) -> ModelDrafts:
    assert engine.core.speculation is not None
    drafts = engine.core.speculation.drafts.source
    assert isinstance(drafts, ModelDrafts)
    return drafts


def shares(engine: Engine) -> tuple[float, float]:
    counted = source(engine).counters()
    return counted["draft_tokens_total{kind=model}"], counted["accepted_draft_tokens_total{kind=model}"]


def disturb(engine: Engine) -> Callable[[int], None]:
    """Return a visitor that preempts sequences, and aborts a request of its own."""
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)

    def visit(step: int) -> None:
        if step == 3:
            engine.core.add(AddRequest("leaving", [5] * 50, params))
        if step == 9:
            engine.core.abort(AbortRequest("leaving"))
        if step in (7, 13):
            engine.core.scheduler.preempt_youngest()

    return visit


def scores(answer: Answer) -> list[float]:
    return [each.logprob for each in answer.logprobs]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("kernels", "name", "draft", "settings"), MATRIX, indirect=["kernels"])
def test_answers_scores_and_hits_are_those_without_drafts(
    model: Callable[[str], Path], name: str, draft: str, settings: dict[str, Any]
) -> None:
    # Steps with drafts do not overlap. Where others do, another of two answers may leave its state there.
    plain = start(model(name), {**settings, "overlap": False})
    engine = drafting(model(name), model(draft), settings)
    texts = {request.request_id: request.token_ids for request in requests()}
    again = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=0)

    def second_turns(answers: dict[tuple[str, int], Answer]) -> list[AddRequest]:
        return [
            AddRequest(f"{key}-{index}+", [*texts[key], *answer.tokens, 7], again)
            for (key, index), answer in answers.items()
        ]

    for turn in (requests(), second_turns(run(plain, requests()))):
        expected, answers = run(plain, turn), run(engine, turn)
        for key, answer in expected.items():
            assert answers[key].tokens == answer.tokens, key
            assert scores(answers[key]) == scores(answer), key
        assert source(engine).lanes.held == 0
    assert sum(answer.cached_tokens for answer in answers.values()) > 0
    drafted, accepted = shares(engine)
    # Behind an id that the draft model lacks, a text has no drafts; few come before it in pages of a token.
    has_few = name == "other" and draft != name and settings.get("page_size") == 1
    assert drafted > (10 if has_few else 80)
    if name == draft:
        # All but those of the answer with penalties, which the draft model does not count.
        assert accepted > 0.8 * drafted
    source(engine).lanes.check()


def test_sequences_that_are_preempted_or_aborted_leave_no_lane_and_go_on_drafting(
    model: Callable[[str], Path],
) -> None:
    settings = {"strategy": "NoBuffer", "dtype": "float32", "page_size": 4}
    expected = run(start(model("nemotron_h"), settings), requests())
    engine = drafting(model("nemotron_h"), model("nemotron_h"), settings)
    answers = run(engine, requests(), before_step=disturb(engine))

    assert {key: answers[key].tokens for key in expected} == {key: a.tokens for key, a in expected.items()}
    assert engine.core.scheduler.counters.preemptions > 0
    drafted, accepted = shares(engine)
    # All but those of the answer with penalties, which the draft model does not count.
    assert accepted > 0.8 * drafted > 80
    assert source(engine).lanes.held == 0
    source(engine).lanes.check()


def test_a_draft_model_with_other_tokens_is_refused_with_the_first_that_differs(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model("nemotron_h"), other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    texts = {token: text for text, token in vocabulary.items()}
    vocabulary[texts[7]], vocabulary[texts[8]] = 8, 7
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UnsupportedModel, match=f"{other} has token 7 '.+', the model token 7 '.+': choose"):
        drafting(model("nemotron_h"), other, {})
