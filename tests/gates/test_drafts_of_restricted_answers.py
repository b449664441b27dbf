"""Answers under penalties, masks and grammars, with drafts behind their tokens, are those without drafts.

The cases are named after corruptions that engines with speculation were reported for. Drafts are scripted:
chance decides how many of their tokens are right, and many of the wrong ones are forbidden at their place.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import Answer, make_engine, run
from mamba_server.engine.boot import BootOverrides, Engine
from mamba_server.engine.grammar_compiler import GrammarCompiler
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.sequences.token_rules import rules_for
from mamba_server.wire import AddRequest, SamplingParams, ThoughtBudget
from scripted_drafts import ScriptedDrafts

MOST = 4
CALL = 'start: "{\\"name\\": \\"" /[a-z ]{3,6}/ "\\", \\"age\\": " /[1-9][0-9]{4,6}/ "}"'
Answers = dict[tuple[str, int], Answer]
Disturb = Callable[[Engine, int], object]


def sampled(tokens: int = 18, **more: Any) -> SamplingParams:
    defaults = {"temperature": 1.4, "seed": 5, "logprobs": 1, "ignore_eos": True}
    return SamplingParams(max_tokens=tokens, **{**defaults, **more})


def prompt(seed: int, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 400) for _ in range(tokens)]


def requests(lengths: tuple[int, ...] = (33, 20, 47, 12, 5, 64)) -> list[AddRequest]:
    """Return requests under every rule; `lengths`: tokens of the prompts."""
    few, budget = tuple(range(40, 60)), ThoughtBudget(5, "", ("\n",), (97, 98, 99))
    # Nothing may follow the first token: the answer ends with an error.
    pair, bad = (70, 71), ((70, 70), (70, 71), (71, 70), (71, 71))
    rules = {
        "penalties": sampled(frequency_penalty=1.5, presence_penalty=0.5, allowed_token_ids=few),
        "repetition": sampled(temperature=0.0, repetition_penalty=1.8),
        "bias": sampled(logit_bias={44: 9.0, 45: 9.0, 4: 8.0}, min_tokens=9, ignore_eos=False),
        "bad words": sampled(logit_bias={44: 9.0, 45: 9.0}, bad_words=((44, 45), (45, 45), (44, 44, 44))),
        "thoughts": sampled(thought_budget=budget),
        "call": sampled(40, grammar=CALL, frequency_penalty=0.3, ignore_eos=False),
        "greedy call": sampled(40, grammar=CALL, temperature=0.0, logprobs=-1),
        "nothing left": sampled(allowed_token_ids=pair, bad_words=bad),
    }
    return [
        AddRequest(name, prompt(number, lengths[number % len(lengths)]), each, n=1 + (name == "penalties"))
        for number, (name, each) in enumerate(rules.items())
    ]


def served(engine: Engine, asked: list[AddRequest], disturb: Disturb | None = None) -> Answers:
    """Return the answers; the rules are compiled as the engine process compiles them."""
    compiler = GrammarCompiler(engine.directory, engine.model.vocab_size, engine.model.eos_token_ids)
    decode = compiler._tokenizer().decode_bytes
    for request in asked:
        form = compiler.compile(request.params.grammar)
        rules = rules_for(request.params, engine.model.vocab_size, form, decode)
        assert engine.core.add(request, rules) is None
    return run(engine, [], before_step=lambda number: disturb(engine, number) if disturb else None)


class Comparison:
    """A plain engine and one with drafts, of the same settings."""

    def __init__(self, model: Path, seed: int = 3, **settings: Any) -> None:
        sizes = {"track_interval": 32, "max_running_requests": 5, "page_size": 16}
        self.plain = make_engine(model, **{**sizes, **settings})
        self._expected: Answers = {}
        self.drafts = ScriptedDrafts(MOST, self._truth, random.Random(seed))
        self.drafted = make_engine(
            model, trial=BootOverrides(drafts=self.drafts), speculation="ngram", speculative_tokens=MOST,
            **{**sizes, **settings},
        )  # fmt: skip

    def _truth(self, sequence: Sequence, count: int) -> list[int]:
        tokens = self._expected[sequence.key].tokens
        return tokens[sequence.outputs : sequence.outputs + count]

    def check(self, asked: list[AddRequest], disturb: Disturb | None = None) -> Answers:
        """Serve requests in both engines and compare tokens, scores, ends and resumed tokens."""
        self._expected = served(self.plain, asked)
        answers = served(self.drafted, asked, disturb)
        assert answers.keys() == self._expected.keys()
        for key, answer in answers.items():
            expected = self._expected[key]
            assert answer.tokens == expected.tokens, key
            assert answer.finish_reason == expected.finish_reason, key
            scores, true = ([each.logprob for each in one.logprobs] for one in (answer, expected))
            assert scores == (pytest.approx(true, abs=1e-4) if disturb else true), key
            assert disturb or answer.cached_tokens == expected.cached_tokens, key
        assert self.drafts.accepted
        return answers


def test_tool_calls_with_drafts_keep_their_form_and_rules_end_where_they_did(tiny_recall: Path) -> None:
    comparison = Comparison(tiny_recall, strategy="ExtraBuffer")

    answers = comparison.check(requests())

    ends = {name: answer.finish_reason for (name, _), answer in answers.items()}
    assert ends["nothing left"] == "error"
    assert ends["call"] == ends["greedy call"] == "stop"
    assert [97, 98, 99] in [answers["thoughts", 0].tokens[at : at + 3] for at in range(9)]
    drafts = comparison.drafts
    assert drafts.drafted > drafts.accepted > 60

    engine = make_engine(tiny_recall, speculation="ngram", speculative_tokens=7)
    call = next(each for each in requests() if each.request_id == "greedy call")
    assert served(engine, [call])["greedy call", 0].tokens == answers["greedy call", 0].tokens
    assert engine.core.speculation is not None
    counted = engine.core.speculation.drafts.counters()
    assert counted["accepted_draft_tokens_total{kind=form}"] > 10, "what the form leaves no choice about"


def test_drafts_with_a_prefix_cache_resume_the_same_tokens_and_states(tiny_recall: Path) -> None:
    comparison = Comparison(tiny_recall, strategy="NoBuffer", overlap=False)
    asked = requests()
    answers = comparison.check(asked)

    turns = [
        AddRequest(
            f"{each.request_id}+", [*each.token_ids, *answers[each.request_id, 0].tokens, 7], each.params
        )
        for each in asked
    ]
    again = comparison.check(turns)

    assert sum(answer.cached_tokens for answer in again.values()) >= 16 * 5


def test_drafts_with_lazy_buffers_leave_the_same_checkpoints(tiny_recall: Path) -> None:
    comparison = Comparison(tiny_recall, strategy="ExtraBufferLazy", page_size=4, track_interval=8)
    asked = requests()
    comparison.check(asked)

    assert sum(answer.cached_tokens for answer in comparison.check(asked).values()) >= 100


def test_last_chunks_of_one_token_to_five_inherit_nothing_from_drafts(tiny_recall: Path) -> None:
    lengths = (49, 50, 51, 52, 53, 97)
    comparison = Comparison(tiny_recall, strategy="NoBuffer", overlap=False, max_running_requests=3)

    comparison.check(requests(lengths))


def test_preemption_amid_accepted_drafts_loses_no_count_and_no_state(tiny_recall: Path) -> None:
    comparison = Comparison(tiny_recall, strategy="ExtraBuffer")

    def preempt(engine: Engine, number: int) -> None:
        if number % 5 == 4:
            engine.core.scheduler.preempt_youngest()

    comparison.check(requests(), preempt)

    assert comparison.drafted.core.scheduler.counters.preemptions > 3
