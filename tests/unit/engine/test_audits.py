"""Audits: a wrong checkpoint is found, named and never used again; a right one is not, and nobody waits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mamba_server
from engine_trial import EngineTrial, TrialSetup
from engines import make_engine, run
from flipped_bits import HIGHEST_EXPONENT_BIT, flip_state_bit
from mamba_server.cache import Lineage, ledger
from mamba_server.engine.admin import AdminCalls
from mamba_server.engine.audits.audit_log import AuditResult
from mamba_server.engine.audits.resumed_answers import MOST_WAITING, ResumedAnswers
from mamba_server.engine.boot import Engine
from mamba_server.engine.stats import collect
from mamba_server.engine.stepping.answer_audits import NoAudits
from mamba_server.wire import AddRequest, AdminCall, SamplingParams
from matrix_size import LARGE
from testmodels.checkpoints import random_nemotron_h, random_qwen3_5

assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
STEM = [1 + index * 7 % 90 for index in range(70)]
FIRST = [1 + index % 90 for index in range(33)]


def booted(directory: Path = TINY, **settings: Any) -> Engine:
    """Boot an engine that audits every answer which resumed, and does everything at once."""
    return make_engine(
        directory, **{"audit_share": 1.0, "overlap": False, "strategy": "ExtraBuffer", **settings}
    )


def audits_of(engine: Engine) -> ResumedAnswers:
    assert isinstance(engine.core.audits, ResumedAnswers)
    return engine.core.audits


def ask(name: str, prompt: list[int], outputs: int = 6, *, logprobs: int = -1) -> AddRequest:
    params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True, logprobs=logprobs)
    return AddRequest(name, prompt, params, turn_boundary=len(prompt) - 1)


def audited(engine: Engine) -> list[AuditResult]:
    """Let the idle engine audit; return the results, the oldest first."""
    while audits_of(engine).due:
        engine.core.step()
    ledger.check(engine.core.cache)
    return list(audits_of(engine).log.results)


def trial(**changes: Any) -> EngineTrial:
    return EngineTrial(TrialSetup(**{"slabs": 40, "audits": 1.0, **changes}), random.Random(0))


def drain(engine: EngineTrial) -> None:
    while not engine.core.idle:
        engine.step()


# --- what is found -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["tiny_recall", "nemotron_h", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of Mamba2 with and without attention, and one of the gated delta rule."""
    folder = tmp_path_factory.mktemp("audited") / request.param
    if request.param == "tiny_recall":
        return TINY
    return random_nemotron_h(folder) if request.param == "nemotron_h" else random_qwen3_5(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_flipped_bit_in_one_layer_is_found_named_and_never_resumed_again(model: Path, dtype: str) -> None:
    engine, rng = booted(model, dtype=dtype, state_dtype="float32"), random.Random(1)
    right = run(engine, [ask("first", STEM)])["first", 0]
    layer = engine.model.recurrent_layers - 1
    lineage = flip_state_bit(engine, STEM, HIGHEST_EXPONENT_BIT, rng, layer=layer)
    wrong = run(engine, [ask("second", STEM)])["second", 0]
    assert wrong.cached_tokens

    [result] = audited(engine)
    assert (result.outcome, result.request_id, result.origin) == ("diverged", "second", "device")
    assert result.reason == f"state of recurrent layer {layer}"
    assert result.lineage is lineage
    assert lineage is not None
    assert (lineage.provenance.request_id, lineage.depth) == ("first", wrong.cached_tokens)

    third = run(engine, [ask("third", STEM)])["third", 0]
    assert third.cached_tokens < wrong.cached_tokens
    assert third.tokens == right.tokens
    assert [each.outcome for each in audited(engine)[1:]] == ["ok"] * bool(third.cached_tokens)


def test_everything_that_was_computed_from_a_wrong_checkpoint_goes_with_it() -> None:
    engine = booted()
    run(engine, [ask("first", STEM)])
    flip_state_bit(engine, STEM, HIGHEST_EXPONENT_BIT, random.Random(2))
    longer = [*STEM, *range(5, 60)]
    run(engine, [ask("second", longer)])
    followed = run(engine, [ask("third", [*longer, 3])])["third", 0]
    assert followed.cached_tokens > len(STEM)

    results = audited(engine)
    assert results[0].outcome == "diverged"
    writers = {each.lineage.provenance.request_id for each in results[0].quarantined if each.lineage}
    assert {"first", "second"} <= writers
    deeper = [each.lineage for each in results[0].quarantined if each.lineage and each.lineage.depth > 64]
    assert all(results[0].lineage in lineage.chain() for lineage in deeper if lineage.parent)
    again = run(engine, [ask("fourth", [*longer, 3])])["fourth", 0]
    assert again.cached_tokens < results[0].depth


def test_the_wrong_ancestor_is_found_through_an_answer_that_resumed_from_its_descendant() -> None:
    engine = booted(page_size=16)
    run(engine, [ask("first", STEM)])
    wrong = flip_state_bit(engine, STEM, HIGHEST_EXPONENT_BIT, random.Random(3))
    longer = [*STEM, *range(5, 60)]
    audits_of(engine).share = 0.0
    run(engine, [ask("second", longer)])
    audits_of(engine).share = 1.0
    run(engine, [ask("third", longer)])

    [result] = audited(engine)
    assert result.outcome == "diverged"
    assert result.lineage is wrong
    assert wrong is not None
    assert result.depth == wrong.depth < len(STEM)


def test_wrong_scores_are_found_when_the_checkpoint_itself_is_gone() -> None:
    engine = booted()
    run(engine, [ask("first", STEM)])
    flip_state_bit(engine, STEM, HIGHEST_EXPONENT_BIT, random.Random(4))
    run(engine, [ask("second", STEM)])
    engine.core.flush_cache()

    [result] = audited(engine)
    assert (result.outcome, result.reason, result.state_distance) == ("diverged", "scores", None)
    assert result.distance is not None
    assert result.bound is not None
    assert result.distance > result.bound


def test_a_checkpoint_that_others_read_is_withdrawn_at_once_and_freed_after_them() -> None:
    engine = booted()
    cache = engine.core.cache
    run(engine, [ask("first", STEM)])
    flip_state_bit(engine, STEM, HIGHEST_EXPONENT_BIT, random.Random(5))
    run(engine, [ask("second", STEM)])
    export = cache.export(np.array(STEM, np.int32), "", engine.core.step_number + 1)
    assert export is not None
    engine.core.tree_changes.take()

    [result] = audited(engine)
    assert result.outcome == "diverged"
    changes = engine.core.tree_changes.take()
    assert changes is not None
    assert changes.lost, "the prefix index still has the checkpoint"
    assert not cache.match(np.array(STEM, np.int32), "", engine.core.step_number + 1).resumable
    before = cache.account()
    assert before.slots_exported == 1
    cache.end_export(export)
    assert cache.account().slots_exported == 0
    assert cache.account().slots_cached == before.slots_cached


# --- what is not ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"] if LARGE else ["bfloat16"])
def test_hundreds_of_right_answers_raise_no_alarm(model: Path, dtype: str) -> None:
    rng, results = random.Random(6), []
    for strategy in ("ExtraBuffer", "NoBuffer"):
        engine = booted(model, dtype=dtype, strategy=strategy, max_running_requests=8)
        texts = [[rng.randrange(90) for _ in range(n)] for n in (20, 40, 66)]
        for turn in range(4):
            asked = [
                ask(f"{turn}-{index}", [*rng.choice(texts), *range(1, rng.randint(2, 20))], rng.randint(1, 9))
                for index in range(8)
            ]
            answers = run(engine, asked)
            texts += [[*each.token_ids, *answers[each.request_id, 0].tokens] for each in asked[:2]]
            results += audited(engine)[-8:]
    assert len(results) >= 40
    assert {result.outcome for result in results} == {"ok"}
    assert any(result.state_distance is not None for result in results)


def test_an_answer_that_was_computed_from_the_beginning_is_not_audited() -> None:
    engine = booted()
    run(engine, [ask("first", STEM), ask("other", FIRST)])
    assert not audited(engine)


def test_an_engine_that_is_to_audit_nothing_has_no_audits() -> None:
    assert isinstance(booted(audit_share=0.0).core.audits, NoAudits)
    assert isinstance(booted(prefix_caching=False).core.audits, NoAudits)


@pytest.mark.parametrize("logprobs", [-1, 2])
def test_an_audited_answer_is_the_one_that_is_served_without_audits(logprobs: int) -> None:
    with_audits, without = booted(), booted(audit_share=0.0)
    for engine in (with_audits, without):
        run(engine, [ask("first", STEM)])
    requests = [ask(f"r{n}", [*STEM, n], 12, logprobs=logprobs) for n in range(4)]
    ours, theirs = run(with_audits, requests), run(without, requests)
    assert len(audited(with_audits)) == 4
    for key, answer in ours.items():
        assert (answer.tokens, answer.logprobs) == (theirs[key].tokens, theirs[key].logprobs)


# --- memory and time -----------------------------------------------------------------------------------


def test_an_audit_gives_way_to_a_request_and_is_abandoned_after_three_times() -> None:
    engine = trial(overlap=False, chunk=16, slabs=120)
    long = [1 + at * 7 % 90 for at in range(300)]
    engine.add(long, 2)
    drain(engine)
    engine.add(long, 2)
    for number in range(3):
        drain_requests(engine)
        engine.step()
        assert engine.audits.holding
        live = engine.cache.account().slots_live
        engine.step()
        assert engine.audits.holding
        engine.add([90 - number, 5, 6], 1)
        engine.step()
        assert not engine.audits.holding
        assert engine.cache.account().slots_live <= live
    assert [result.reason for result in engine.audits.log.results] == ["other_work"]
    engine.close()


def drain_requests(engine: EngineTrial) -> None:
    while engine.core.sequences or engine.core._launched or engine.core._deltas:
        engine.step()


def test_an_answer_that_would_take_most_of_the_arena_is_not_computed_again() -> None:
    engine = trial(overlap=False, slabs=12, pages_per_slab=1, page_size=16, chunk=16, rows=1)
    text = [1 + at % 90 for at in range(90)]
    for _ in range(2):
        engine.add(text, 1)
        drain(engine)
    engine.close()
    assert {result.reason for result in engine.audits.log.results} == {"no_memory"}


def test_a_device_that_fails_in_an_audit_costs_the_audit_alone() -> None:
    engine = trial(overlap=False)
    for _ in range(2):
        engine.add(FIRST, 2)
        drain_requests(engine)
    assert engine.audits.due
    engine.runner.fail_steps[engine.core.step_number + 1] = "before"
    engine.step()
    assert engine.core.failed_steps == 1
    assert [result.reason for result in engine.audits.log.results] == ["failed"]
    engine.add(FIRST, 2)
    engine.close()


def test_of_more_answers_than_may_wait_the_oldest_are_abandoned() -> None:
    engine = trial(overlap=False, slabs=80, rows=6)
    engine.add(FIRST, 1)
    drain(engine)
    for number in range(MOST_WAITING + 3):
        engine.add([*FIRST, number + 1], 40)
    drain_requests(engine)
    reasons = [result.reason for result in engine.audits.log.results]
    assert reasons.count("too_many") == 3
    engine.close()


# --- what is shown -------------------------------------------------------------------------------------


def test_results_are_counted_and_listed_with_the_lineage() -> None:
    engine = trial(overlap=False)
    for _ in range(2):
        engine.add(FIRST, 2)
        drain(engine)
    while engine.audits.due:
        engine.step()
    stats = collect(engine.core)
    assert stats.counters["audits_total{outcome=ok,origin=device}"] == 1
    assert {kind for kind, _ in stats.audit_distances} == {"scores", "states"}
    assert not collect(engine.core).audit_distances

    reply = AdminCalls(engine.core, {}).answer(AdminCall(1, "audits"))
    [shown] = reply.body["audits"]
    assert (shown["request"], shown["outcome"], shown["distance"]) == ("r1", "ok", 0.0)
    [named] = shown["lineage"]
    assert (named["request"], named["origin"], named["depth"]) == ("r0", "device", shown["depth"])


def test_a_lineage_names_each_ancestor_with_what_it_was_computed_from() -> None:
    engine = trial(overlap=False, slabs=60)
    text: list[int] = FIRST
    for _ in range(3):
        engine.add(text, 1)
        drain(engine)
        text = [*text, *(1 + at for at in range(20))]
    deepest = max((node for node in engine.cache.tree.walk() if node.slot), key=lambda node: node.depth)
    lineage: Lineage | None = deepest.lineage
    assert lineage is not None
    chain = list(lineage.chain())
    assert [each.provenance.request_id for each in chain] == ["r2", "r1", "r0"]
    assert [each.depth for each in chain] == sorted((each.depth for each in chain), reverse=True)


# --- answers with drafts -------------------------------------------------------------------------------


def test_a_wrong_absorption_is_found_and_ends_speculation_until_a_person_begins_it_again() -> None:
    engine = trial(drafts=4, overlap=False)
    admin = AdminCalls(engine.core, {})

    def speculation(**body: bool) -> dict[str, Any]:
        return admin.answer(AdminCall(1, "speculation", body)).body

    def serve(prompt: list[int], *, spoil: bool = False) -> int:
        """Return the drafted tokens; `spoil`: what the first accepted drafts leave in the state is wrong."""
        before = engine.drafts.drafted
        assert engine.add(prompt, 60)
        while not engine.core.idle or engine.audits.due:
            engine.core.step()
            for sequence in engine.core.scheduler.decoding:
                if spoil and sequence.allocation is not None and sequence.allocation.waiting:
                    engine.runner.ring[sequence.allocation.lane] = [96] * 4
                    spoil = False
        return engine.drafts.drafted - before

    assert serve([5] * 20)
    assert speculation() == {"on": True, "reason": ""}
    assert [each.outcome for each in engine.audits.log.results] == ["ok"], "it resumed from nothing"
    before = engine.cache.counters.quarantined
    serve([7] * 21, spoil=True)

    result = engine.audits.log.results[-1]
    assert (result.outcome, result.reason, result.depth, result.lineage) == ("diverged", "scores", 0, None)
    assert result.accepted
    assert engine.cache.counters.quarantined > before, "what the answer left is withdrawn"
    assert collect(engine.core).gauges["speculation_on"] == 0
    assert speculation()["reason"] == "an audit found a wrong answer: scores at depth 20"
    assert not serve([9] * 22)
    assert speculation(on=True) == {"on": True, "reason": ""}
    assert serve([11] * 23)
    assert speculation(on=False)["on"] is False
    plain = AdminCalls(trial().core, {}).answer(AdminCall(1, "speculation", {"on": True}))
    assert plain.status == 409


def test_an_audit_of_a_traced_request_is_reported_as_a_span_of_it() -> None:
    engine = trial(drafts=4)
    request = AddRequest(
        "r", [5] * 40, SamplingParams(max_tokens=30, ignore_eos=True), traceparent="its span"
    )
    assert engine.core.add(request) is None
    while not engine.core.idle or engine.audits.due:
        engine.core.step()

    [span] = collect(engine.core).audit_spans
    assert (span.traceparent, span.outcome, span.tokens) == ("its span", "ok", 70)
    assert 0 < span.began <= span.ended
    assert collect(engine.core).audit_spans == []
