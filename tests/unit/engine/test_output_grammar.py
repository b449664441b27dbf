"""Answers that follow a grammar: masks by row, one launched step at most, grammars made beside the loop."""

import random
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byte_tokenizer import byte_tokenizer, write_tokenizer
from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.grammar_compiler import GrammarCompiler
from mamba_server.engine.sequences.output_grammar import OutputGrammar, TokenMasks, token_masks
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import AddRequest, RequestRejected, SamplingParams, SequenceDelta
from scripted_grammar import ScriptedGrammar

VOCAB = 300
"""More than the tokenizer has, as models have."""
DIGITS = "start: /[0-9]{2,3}/"
ENCODE = byte_tokenizer()


@pytest.fixture
def compiler(tmp_path: Path) -> GrammarCompiler:
    eos = write_tokenizer(tmp_path).token_to_id("<eos>")
    return GrammarCompiler(tmp_path, VOCAB, (eos,))


def ids(text: str) -> list[int]:
    return list(ENCODE.encode(text).ids)


def allowed(masks: TokenMasks, place: int) -> set[int]:
    bits = np.unpackbits(masks.words[place].view(np.uint8), bitorder="little")[:VOCAB]
    return set(np.flatnonzero(bits).tolist())


def test_a_mask_says_what_may_follow(compiler: GrammarCompiler) -> None:
    grammar, other = compiler.compile(DIGITS), compiler.compile('start: "ab"')
    digits, eos = set(ids("0123456789")), ENCODE.token_to_id("<eos>")

    masks = token_masks([None, grammar, None, other], VOCAB)

    assert masks is not None
    assert masks.rows.tolist() == [1, 3]
    assert allowed(masks, 0) == digits
    assert allowed(masks, 1) == set(ids("a"))
    for token in ids("12"):
        grammar.consume(token)
    again = token_masks([grammar], VOCAB)
    assert again is not None
    assert allowed(again, 0) == {*digits, eos}
    assert not grammar.complete
    grammar.consume(ids("3")[0])
    assert grammar.complete
    assert not grammar.error


def test_without_a_grammar_there_is_no_mask() -> None:
    assert token_masks([], VOCAB) is None
    assert token_masks([None] * 4, VOCAB) is None


def test_masks_are_cut_as_rows_are() -> None:
    masks = TokenMasks(np.array([1, 4, 5]), np.arange(6, dtype=np.int32).reshape(3, 2))
    cut = masks.of_rows(slice(2, 5))
    assert cut is not None
    assert (cut.rows.tolist(), cut.words.tolist()) == ([2], [[2, 3]])
    assert masks.of_rows(slice(2, 4)) is None


def test_a_fork_goes_its_own_way(compiler: GrammarCompiler) -> None:
    one = compiler.compile('start: "a" | "b"')
    other = one.fork()
    one.consume(ids("a")[0])
    assert (one.complete, other.complete) == (True, False)
    other.consume(ids("b")[0])
    assert (other.complete, other.error) == (True, "")


def test_a_token_that_may_not_come_is_an_error(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(DIGITS)
    grammar.consume(ids("x")[0])
    assert grammar.error


# --- grammars are made beside the loop --------------------------------------------------------------------


def request(name: str, grammar: str) -> AddRequest:
    return AddRequest(name, [1], SamplingParams(max_tokens=4, grammar=grammar))


def made(compiler: GrammarCompiler) -> list[tuple[AddRequest, OutputGrammar | RequestRejected]]:
    out = []
    while compiler.pending:
        out += compiler.take()
    return out


def test_grammars_come_with_their_requests(compiler: GrammarCompiler) -> None:
    requests = [request("one", DIGITS), request("two", 'start: "a"')]
    for each in requests:
        compiler.begin(each)
    found = made(compiler)
    assert {each.request_id for each, _ in found} == {each.request_id for each in requests}
    assert all(isinstance(grammar, OutputGrammar) for _, grammar in found)
    assert compiler.take() == []


def test_a_grammar_that_takes_long_holds_up_its_own_request_alone(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    futures: list[Future[OutputGrammar]] = [Future(), Future()]
    given = iter(futures)
    monkeypatch.setattr(compiler._threads, "submit", lambda *_: next(given))
    compiler.begin(request("long", DIGITS))
    compiler.begin(request("short", 'start: "a"'))
    futures[1].set_result(compiler.compile('start: "a"'))
    assert [each.request_id for each, _ in compiler.take()] == ["short"]
    futures[0].set_result(compiler.compile(DIGITS))
    assert [each.request_id for each, _ in compiler.take()] == ["long"]


def test_a_grammar_that_comes_again_is_made_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    real = compiler.compile
    monkeypatch.setattr(compiler, "compile", lambda text: (compiled.append(text), real(text))[1])
    for name in ("one", "two", "three"):
        compiler.begin(request(name, DIGITS))
        if name != "one":
            made(compiler)
    assert compiled == [DIGITS]


def test_an_answer_may_end_with_each_token_that_ends_a_plain_one(compiler: GrammarCompiler) -> None:
    eos, other = ENCODE.token_to_id("<eos>"), 299
    grammar = compiler.compile(DIGITS).fork(frozenset({eos, other}))
    digits = set(ids("0123456789"))
    for written, expected in (("", digits), ("1", digits), ("2", {*digits, eos, other})):
        for token in ids(written):
            grammar.consume(token)
        masks = token_masks([grammar], VOCAB)
        assert masks is not None
        assert allowed(masks, 0) == expected
    grammar.consume(other)
    assert (grammar.complete, grammar.error) == (True, "")


def test_an_end_that_is_ignored_comes_only_where_nothing_else_may(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile('start: "a" "b"?').fork(frozenset())
    grammar.consume(ids("a")[0])
    masks = token_masks([grammar], VOCAB)
    assert masks is not None
    assert allowed(masks, 0) == set(ids("b"))


def test_a_grammar_that_cannot_be_made_rejects_its_request_alone(compiler: GrammarCompiler) -> None:
    compiler.begin(request("bad", "start: nowhere"))
    compiler.begin(request("good", DIGITS))
    found = {each.request_id: grammar for each, grammar in made(compiler)}
    bad, good = found["bad"], found["good"]
    assert isinstance(bad, RequestRejected)
    assert (bad.request_id, bad.status, bad.code) == ("bad", 400, "invalid_output_grammar")
    assert "nowhere" in bad.message
    assert isinstance(good, OutputGrammar)


def test_a_model_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    compiler = GrammarCompiler(tmp_path, VOCAB, (0,))
    compiler.begin(request("r", DIGITS))
    ((_, rejected),) = made(compiler)
    assert isinstance(rejected, RequestRejected)
    assert "tokenizer.json" in rejected.message


def test_a_request_that_was_given_up_never_comes(compiler: GrammarCompiler) -> None:
    compiler.begin(request("gone", DIGITS))
    compiler.cancel("gone")
    compiler.cancel("unknown")
    assert made(compiler) == []


# --- in the core ------------------------------------------------------------------------------------------


def trial(*, overlap: bool, **changes: object) -> EngineTrial:
    """Run a trial whose steps are launched when their masks can be built."""
    engine = EngineTrial(TrialSetup(**{"slabs": 400, "overlap": overlap, **changes}), random.Random(0))
    prepare = engine.runner.prepare

    def prepared(schedule: Schedule) -> Any:
        assert all(each.grammar is None or each.in_flight == 1 for each in schedule.members)
        return prepare(schedule)

    engine.runner.prepare = prepared  # type: ignore[method-assign]
    return engine


def add(
    engine: EngineTrial, name: str, outputs: int, grammar: ScriptedGrammar | None = None, n: int = 1
) -> None:
    params = SamplingParams(max_tokens=outputs, ignore_eos=True)
    assert engine.core.add(AddRequest(name, [5] * 40, params, n=n), grammar) is None  # type: ignore[arg-type]


def run(engine: EngineTrial) -> list[SequenceDelta]:
    out: list[SequenceDelta] = []
    for _ in range(3000):
        if engine.core.idle:
            return out
        out += engine.core.step()
        engine.check()
    raise AssertionError("the engine hangs")


def tokens_of(deltas: list[SequenceDelta], name: str, index: int = 0) -> list[int]:
    return [t for each in deltas if (each.request_id, each.index) == (name, index) for t in each.token_ids]


@pytest.mark.parametrize("overlap", [True, False])
def test_an_answer_ends_where_its_grammar_does(overlap: bool) -> None:
    engine, grammar = trial(overlap=overlap), ScriptedGrammar(7)
    add(engine, "guided", 20, grammar, n=2)
    add(engine, "free", 12)

    deltas = run(engine)

    ends = {(each.request_id, each.index): each for each in deltas if each.finish_reason}
    assert {key: each.finish_reason for key, each in ends.items()} == {
        ("guided", 0): "stop", ("guided", 1): "stop", ("free", 0): "length",
    }  # fmt: skip
    # The last token is text: no stop token ended it.
    assert ends["guided", 0].stop_token_id is None
    assert [len(tokens_of(deltas, "guided", index)) for index in (0, 1)] == [7, 7]
    assert len(tokens_of(deltas, "free")) == 12
    assert sorted(grammar.log) == sorted(tokens_of(deltas, "guided", 0) + tokens_of(deltas, "guided", 1))


@pytest.mark.parametrize("overlap", [True, False])
def test_tokens_are_those_of_an_answer_without_a_grammar_that_allows_all(overlap: bool) -> None:
    engine, plain = trial(overlap=overlap), trial(overlap=overlap)
    add(engine, "r", 9, ScriptedGrammar(100))
    add(plain, "r", 9)
    assert tokens_of(run(engine), "r") == tokens_of(run(plain), "r")


@pytest.mark.parametrize("overlap", [True, False])
def test_a_token_that_the_grammar_refuses_ends_the_request_with_an_error(overlap: bool) -> None:
    engine = trial(overlap=overlap)
    add(engine, "guided", 20, ScriptedGrammar(3, refuses=True))
    add(engine, "free", 6)

    deltas = run(engine)

    last = [each for each in deltas if each.request_id == "guided"][-1]
    assert (last.finish_reason, last.token_ids) == ("error", [])
    assert "it is no digit" in last.error
    assert len(tokens_of(deltas, "free")) == 6


@pytest.mark.parametrize("overlap", [True, False])
def test_a_preempted_answer_goes_on_where_its_grammar_was(overlap: bool) -> None:
    engine, grammar = trial(overlap=overlap), ScriptedGrammar(60)
    add(engine, "older", 100)
    add(engine, "guided", 100, grammar)
    deltas = [delta for _ in range(12) for delta in engine.core.step()]
    guided: Sequence = engine.core.sequences["guided"][0]
    before = len(grammar.log)
    assert 0 < before < 60

    assert engine.core.scheduler.preempt_youngest()
    deltas += run(engine)

    assert guided.preemptions == 1
    assert len(tokens_of(deltas, "guided")) == 60


@pytest.mark.parametrize(
    "grammar",
    [
        "start: /((a{1000}){1000}){1000}/",
        "start: " + " ".join(['("a" | "b" | "ab")?'] * 2000),
        'start: a+\na: b | c | a a\nb: "x"\nc: "x" | "xx"',
    ],
)
def test_a_grammar_made_to_cost_much_is_refused_or_followed(compiler: GrammarCompiler, grammar: str) -> None:
    compiler.begin(request("costly", grammar))
    ((_, found),) = made(compiler)
    if isinstance(found, RequestRejected):
        assert found.code == "invalid_output_grammar"
        return
    for _ in range(20):
        masks = token_masks([found], VOCAB)
        assert masks is not None
        if not (tokens := sorted(allowed(masks, 0))):
            break
        found.consume(tokens[0])
    assert found.complete or not found.error
