"""Adapters in an engine: rows of one batch use theirs, and nothing that one computed is used for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mamba_server
from engines import Answer, greedy, make_engine, run
from eventually import wait_until
from mamba_planner.adapter_bank import bank_bytes
from mamba_prefix.adapter_salt import adapted_salt
from mamba_prefix.page_chain import PageChain
from mamba_server.engine.adapter_calls import AdapterCalls
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.boot import Engine
from mamba_server.model.checkpoint.errors import AdapterError
from mamba_server.wire import AdminCall, AdminReply, RequestRejected
from testmodels.adapters import merged_checkpoint, shapes_in, write_adapter
from testmodels.checkpoints import random_kimi_linear, random_zamba2

assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
PROJECTIONS = ("in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
PROMPT = [1 + index * 7 % 90 for index in range(150)]
OUTPUTS = 12
TOLERANCE = 1e-4


@dataclass
class Adapters:
    """Three adapters, their merged models, and the answers of these to `PROMPT`."""

    paths: dict[str, Path]
    expected: dict[str, Answer]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = shapes_in(TINY, *PROJECTIONS)
    paths = {
        "first": write_adapter(folder / "first", shapes, seed=1, size=0.06),
        "second": write_adapter(folder / "second", shapes, seed=2, rank=8, size=0.06, use_rslora=True),
        "third": write_adapter(folder / "third", shapes_in(TINY, "out_proj", "up_proj"), seed=3, size=0.1),
    }
    models = {name: merged_checkpoint(TINY, path, folder / f"{name}-merged") for name, path in paths.items()}
    expected = {name: told(make_engine(model)) for name, model in {**models, "": TINY}.items()}
    assert len({tuple(answer.tokens) for answer in expected.values()}) == len(expected)
    return Adapters(paths, expected)


def booted(adapters: Adapters, *names: str, **settings: Any) -> Engine:
    lora = tuple(f"{name}={adapters.paths[name]}" for name in names or adapters.paths)
    return make_engine(TINY, lora=lora, max_lora_rank=8, **settings)


def told(engine: Engine, adapter: str = "", name: str = "alone") -> Answer:
    """Return the answer to the prompt with the adapter of that name."""
    return run(engine, [greedy(name, PROMPT, OUTPUTS, adapter=fingerprint(engine, adapter))])[name, 0]


def fingerprint(engine: Engine, name: str) -> str:
    return next((adapter.fingerprint for adapter in engine.adapters if adapter.name == name), "")


def check(answer: Answer, expected: Answer) -> None:
    assert answer.tokens == expected.tokens
    for ours, theirs in zip(answer.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("settings", "kernels"),
    [
        ({"chunked_prefill_tokens": 64, "strategy": "ExtraBuffer"}, "auto"),
        ({"chunked_prefill_tokens": 64, "strategy": "ExtraBuffer"}, "torch"),
        ({"overlap": False, "speculation": "ngram", "strategy": "NoBuffer"}, "auto"),
    ],
    ids=["pieces-overlap", "pieces-overlap-torch", "drafts"],
)
def test_each_row_of_a_batch_is_computed_with_its_own_adapter_or_none(
    adapters: Adapters, settings: dict[str, Any], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAMBASERVE_KERNELS", kernels)
    engine = booted(adapters, **settings)
    names = ["first", "", "second", "third", "first"]
    requests = [
        greedy(f"{number}", PROMPT, OUTPUTS, adapter=fingerprint(engine, name))
        for number, name in enumerate(names)
    ]
    preempt = {9: engine.core.scheduler.preempt_youngest}
    answers = run(engine, requests, before_step=lambda step: preempt.get(step, bool)())
    for number, name in enumerate(names):
        check(answers[f"{number}", 0], adapters.expected[name])


def test_the_places_take_the_bytes_that_the_plan_counts(adapters: Adapters) -> None:
    engine = booted(adapters)
    assert engine.bank is not None
    counted = bank_bytes(engine.model, "float32", places=4, rank=8)
    assert engine.bank.nbytes == counted == engine.plan.adapters_bytes
    assert {line.item: line.bytes for line in engine.plan.ledger}["places for adapters"] == counted


@pytest.mark.parametrize("later", ["second", ""])
def test_no_state_and_no_page_of_one_adapter_is_used_for_another_or_for_the_base(
    adapters: Adapters, later: str
) -> None:
    engine = booted(adapters)
    check(told(engine, "first", "before"), adapters.expected["first"])
    answer = told(engine, later)
    assert answer.cached_tokens == 0
    check(answer, adapters.expected[later])
    again = told(engine, "first", "again")
    assert again.cached_tokens > 100
    check(again, adapters.expected["first"])


def test_published_hashes_and_exported_states_name_the_adapter(adapters: Adapters) -> None:
    engine = booted(adapters)
    told(engine, "first")
    changes = engine.core.tree_changes.take()
    assert changes is not None
    chain = PageChain(engine.core.cache.capacity.page_size, engine.core.cache.settings.fingerprint)
    tokens = np.array(PROMPT, np.int32)

    def is_published(salt: str) -> bool:
        hashes = chain.hashes(tokens, salt).astype("<u8")
        return any(each.tobytes() in changes.gained for each in hashes)

    own = adapted_salt(fingerprint(engine, "first"), "")
    others = ("", adapted_salt(fingerprint(engine, "second"), ""))
    assert is_published(own)
    assert not any(is_published(other) for other in others)
    export = engine.core.cache.export
    assert [export(tokens, salt, engine.core.step_number + 1) is not None for salt in (own, *others)] == [
        True, False, False,
    ]  # fmt: skip


def test_an_audit_computes_an_answer_with_its_adapter(adapters: Adapters) -> None:
    engine = booted(adapters, audit_share=1.0, strategy="ExtraBuffer")
    told(engine, "first", "one")
    told(engine, "first", "two")
    audits = engine.core.audits
    assert isinstance(audits, ResumedAnswers)
    while audits.due:
        engine.core.step()
    assert [result.outcome for result in audits.log.results] == ["ok"]


class Calls:
    """Admin calls of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._calls = AdapterCalls(engine.core, engine.bank, lambda: None)

    def __call__(self, verb: str, **body: Any) -> AdminReply:
        replies: list[AdminReply] = []
        assert self._calls.begin(AdminCall(1, verb, body))
        wait_until(lambda: bool(replies.extend(self._calls.take_replies()) or replies))
        return replies[0]

    def load(self, path: Path, *known: str) -> AdminReply:
        return self("adapter_load", path=str(path), known=[*known])


def test_an_adapter_of_a_higher_rank_takes_the_place_of_another(adapters: Adapters) -> None:
    engine = booted(adapters, "first", max_loras=1)
    calls = Calls(engine)
    assert calls("adapter_unload", fingerprint=fingerprint(engine, "first")).status == 200
    second = calls.load(adapters.paths["second"]).body["fingerprint"]
    answer = run(engine, [greedy("alone", PROMPT, OUTPUTS, adapter=second)])["alone", 0]
    check(answer, adapters.expected["second"])


def test_an_adapter_comes_and_goes_while_the_engine_serves(adapters: Adapters) -> None:
    engine = booted(adapters, "first", max_loras=2)
    calls, first = Calls(engine), fingerprint(engine, "first")
    second = calls.load(adapters.paths["second"], first).body["fingerprint"]
    assert calls.load(adapters.paths["second"], first, second).body["fingerprint"] == second
    full = calls.load(adapters.paths["third"], first, second)
    assert full.status == 409
    assert "--max-loras 3" in full.body["message"]
    request = greedy("one", PROMPT, OUTPUTS, adapter=first)
    assert engine.core.add(request) is None
    engine.core.step()
    busy = calls("adapter_unload", fingerprint=first)
    assert (busy.status, "1 sequences" in busy.body["message"]) == (409, True)
    run(engine, [])
    assert calls("adapter_unload", fingerprint=first).status == 200
    rejected = engine.core.add(greedy("late", PROMPT, 1, adapter=first))
    assert isinstance(rejected, RequestRejected)
    assert (rejected.status, rejected.code) == (404, "model_not_found")
    third = calls.load(adapters.paths["third"], second).body["fingerprint"]
    answers = run(engine, [greedy(each, PROMPT, OUTPUTS, adapter=each) for each in (second, third)])
    check(answers[second, 0], adapters.expected["second"])
    check(answers[third, 0], adapters.expected["third"])
    # Nobody knows them any more: their callers did not wait for the reply.
    assert calls.load(adapters.paths["first"]).status == 200
    assert engine.bank is not None
    assert engine.bank.fingerprints == [first]


def test_the_same_name_with_other_bytes_is_another_adapter(adapters: Adapters, tmp_path: Path) -> None:
    shapes = shapes_in(TINY, "out_proj")
    engine = booted(adapters, "first", max_loras=3)
    calls, known = Calls(engine), fingerprint(engine, "first")
    before = calls.load(write_adapter(tmp_path / "own", shapes, seed=1), known).body["fingerprint"]
    after = calls.load(write_adapter(tmp_path / "own", shapes, seed=2), known, before).body["fingerprint"]
    assert before != after


def wrong_rank(folder: Path) -> Path:
    return write_adapter(folder, shapes_in(TINY, "q_proj"), rank=9)


def wrong_model(folder: Path) -> Path:
    return write_adapter(folder, {"backbone.layers.1.mixer.q_proj": (128, 64)})


def wrong_module(folder: Path) -> Path:
    return write_adapter(folder, {"backbone.layers.0.mixer.conv1d": (256, 4)})


def expert(folder: Path) -> Path:
    return write_adapter(folder, {"backbone.layers.2.mixer.experts.3.up_proj": (256, 128)})


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (wrong_rank, "--max-lora-rank 9"),
        (wrong_model, "trained for another model"),
        (wrong_module, "mixer.conv1d, which is no projection"),
        (expert, "start with --max-lora-expert-rank 4"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_with_what_to_do(
    adapters: Adapters, tmp_path: Path, write: Callable[[Path], Path], words: str
) -> None:
    adapters.paths["wrong"] = write(tmp_path / "wrong")
    with pytest.raises(AdapterError, match=words):
        booted(adapters, "wrong")


USED_TWICE = "shared_transformer.self_attn.q_proj"
UNUSED = "shared_transformer.feed_forward.gate_up_proj_adapter_list.2.0"


def test_an_adapter_of_a_block_that_layers_share_names_each_use_of_it(tmp_path: Path) -> None:
    base = random_zamba2(tmp_path / "base")
    both = {f"model.layers.{layer}.{USED_TWICE}": (96, 96) for layer in (1, 4)}
    other = {f"model.layers.1.{UNUSED}": (8, 48)}
    names = {
        "both": write_adapter(tmp_path / "both", both, seed=1),
        "one": write_adapter(tmp_path / "one", dict([*both.items()][:1]), seed=1),
        # PEFT writes modules that no step of the training computed, with zeros.
        "more": write_adapter(tmp_path / "more", {**both, **other}, seed=1, zeros=[*other]),
    }
    answers = [
        told(make_engine(base, lora=(f"a={names[name]}",)), adapter).tokens
        for name, adapter in (("both", "a"), ("more", "a"), ("both", ""))
    ]
    assert answers[0] == answers[1] != answers[2]
    with pytest.raises(AdapterError, match=rf"layers.1.{USED_TWICE}, and not layers.4.{USED_TWICE}"):
        make_engine(base, lora=(f"a={names['one']}",))


def test_a_refusal_names_a_module_as_the_adapter_does(tmp_path: Path) -> None:
    base = random_kimi_linear(tmp_path / "base")
    for name in ("mlp", "block_sparse_moe"):
        module = f"layers.1.{name}.shared_experts.down_proj"
        path = write_adapter(tmp_path / name, {f"model.{module}": (48, 48)})
        with pytest.raises(AdapterError, match=rf"{module}, .* --max-lora-expert-rank 4"):
            make_engine(base, lora=(f"a={path}",))
