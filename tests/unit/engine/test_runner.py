"""The device side of a step: the right token feeds the right row, and every row gets what it asked for.

The model is a table: logits follow from the last token and its position alone, so what a sequence must say
can be worked out beside the engine, token by token.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from covering import every
from guarded_arena import GuardedArena
from living_objects import ObjectRounds
from mamba_kernels.dispatch.backend import TORCH
from mamba_planner.strategy import reservation
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.execution import token_scores
from mamba_server.engine.execution.runner import ModelRunner
from mamba_server.engine.execution.sampler import Sampler
from mamba_server.engine.execution.sampling_batch import SamplingBatch
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import ForwardStream, InlineStream, ThreadStream
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.wire import AddRequest, SamplingParams, TokenLogprobs
from matrix_size import LARGE
from simulated_stream import SimulatedStream

VOCAB = 40
EOS = 0
CPU = torch.device("cpu")
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
PHASE = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(4))


def logits_after(token: int, position: int) -> torch.Tensor:
    """Return [VOCAB]: the logits of the model after `token` at `position`."""
    return TABLE[token] + PHASE[position % 64]


class TableModel:
    """Stands in for `HybridModel`; may fail on demand."""

    backend = TORCH
    adapters = None

    def __init__(self) -> None:
        self.fail_next = False
        self.steps = 0
        self.spoils = -1
        """A token after which every number is `spoilt`."""
        self.spoilt = math.nan
        self.most_rows = 0

    def hidden(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        self.steps += 1
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("device lost")
        at = batch.logits_rows.long()
        tokens = batch.token_ids[at].long()
        out = TABLE[tokens] + PHASE[batch.positions[at].long() % 64]
        return out.masked_fill_((tokens == self.spoils)[:, None], self.spoilt)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.most_rows = max(self.most_rows, len(hidden))
        return hidden.clone()


@dataclass
class Told:
    """Outputs reported for one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reason: str | None = None
    error: str = ""
    deltas: int = 0


class Bench:
    """A whole engine core over the table."""

    def __init__(
        self, *, overlap: bool = False, stream: ForwardStream | None = None, capacity: int = 4
    ) -> None:
        cache = RadixStateCache(
            GuardedArena(80, 2), RadixTree(4, Eviction("LRU")), PersistentBatch(capacity, 64),
            reservation("ExtraBuffer", overlap=overlap), track_interval=8, cap=4,
        )  # fmt: skip
        self.model = TableModel()
        self.runner = ModelRunner(
            self.model, CacheViews([], [], []), cache.batch, chunk=16, page_size=4, vocab_size=VOCAB,  # type: ignore[arg-type]
            eos_token_ids=(EOS,), device=CPU,
        )  # fmt: skip
        self.stream = stream or (SimulatedStream(lambda _: 0) if overlap else InlineStream())
        self.core = EngineCore(
            Scheduler(cache, SchedulerLimits(32, 16, capacity, 256)), cache, self.stream, self.runner,
            overlap=overlap, eos_token_ids=frozenset({EOS}),
        )  # fmt: skip

    def add(self, name: str, prompt: list[int], outputs: int, *, n: int = 1, **params: Any) -> None:
        wanted = SamplingParams(max_tokens=outputs, **{"temperature": 0.0, "ignore_eos": True, **params})
        assert self.core.add(AddRequest(name, prompt, wanted, n=n)) is None

    def run(self, before: Callable[[int], object] = lambda _: None) -> dict[str, Told]:
        """Run until idle; `before` is called ahead of each step with its number."""
        out: dict[str, Told] = {}
        for number in range(2000):
            if self.core.idle:
                return out
            before(number)
            for delta in self.core.step():
                key = delta.request_id if not delta.index else f"{delta.request_id}/{delta.index}"
                told = out.setdefault(key, Told())
                told.deltas += 1
                told.tokens += delta.token_ids
                told.logprobs += delta.logprobs or []
                told.prompt_logprobs = told.prompt_logprobs or delta.prompt_logprobs
                told.reason = delta.finish_reason or told.reason
                told.error = told.error or delta.error
        raise AssertionError("the engine hangs")

    def preempt(self, name: str) -> None:
        for sequence in [*self.core.scheduler.prefilling, *self.core.scheduler.decoding]:
            if sequence.request_id == name:
                self.core.scheduler.preempt(sequence)


def greedy(prompt: list[int], outputs: int) -> list[int]:
    """Compute the most likely continuation token by token."""
    text = list(prompt)
    for _ in range(outputs):
        text.append(int(logits_after(text[-1], len(text) - 1).argmax()))
    return text[len(prompt) :]


@pytest.fixture(params=["inline", "simulated", "thread"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    thread = ThreadStream() if request.param == "thread" else None
    yield Bench(overlap=request.param != "inline", stream=thread)
    if thread is not None:
        thread.close()


PROMPTS = {"a": [3, 1, 4], "b": list(range(1, 38)), "c": [9], "d": [2] * 20, "e": list(range(30, 5, -1))}


# --- tokens --------------------------------------------------------------------------------------------


def test_each_row_goes_on_from_its_own_last_token_whoever_comes_and_goes(bench: Bench) -> None:
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        bench.add(name, prompt, 5 + 4 * number)
    told = bench.run()
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        assert told[name].tokens == greedy(prompt, 5 + 4 * number), name


def test_a_preempted_sequence_goes_on_where_it_was(bench: Bench) -> None:
    for name, prompt in PROMPTS.items():
        bench.add(name, prompt, 15)
    told = bench.run(lambda number: bench.preempt("abcde"[number % 5]) if number in (3, 4, 7, 9) else None)
    assert {name: each.tokens for name, each in told.items()} == {
        name: greedy(prompt, 15) for name, prompt in PROMPTS.items()
    }


def test_one_token_is_the_last_of_the_prompts_logits(bench: Bench) -> None:
    bench.add("one", list(range(1, 38)), 1)
    assert bench.run()["one"].tokens == greedy(list(range(1, 38)), 1)


def drawn(overlap: bool, company: bool, preempted: bool) -> dict[str, list[int]]:
    bench = Bench(overlap=overlap)
    if company:
        bench.add("other", [8, 8, 8], 9, temperature=1.0, seed=77)
    bench.add("r", [5, 6, 7], 25, n=2, temperature=1.3, top_p=0.9, seed=11)
    told = bench.run(lambda number: bench.preempt("r") if preempted and number in (4, 9) else None)
    return {name: told[name].tokens for name in ("r", "r/1")}


def test_a_seed_says_the_same_in_any_company_with_any_overlap_and_after_a_preemption() -> None:
    alone = drawn(overlap=False, company=False, preempted=False)
    assert alone["r"] != alone["r/1"]
    for overlap in (False, True):
        for company in (False, True):
            for preempted in (False, True):
                assert drawn(overlap, company, preempted) == alone


@pytest.mark.parametrize("overlap", [False, True])
def test_penalties_forget_the_row_of_the_last_owner_and_survive_a_preemption(overlap: bool) -> None:
    def said(prompt: list[int], *, before: int = 0, preempt: bool = False) -> list[int]:
        bench = Bench(overlap=overlap, capacity=1)
        for number in range(before):
            bench.add(f"b{number}", [1 + number, 2], 6, presence_penalty=1.5)
        bench.add("r", prompt, 20, presence_penalty=2.0, frequency_penalty=0.5, repetition_penalty=1.3)
        return bench.run(lambda number: bench.preempt("r") if preempt and number % 7 == 6 else None)[
            "r"
        ].tokens

    alone = said([5, 6, 7])
    assert alone != greedy([5, 6, 7], 20)
    assert said([5, 6, 7], before=3) == alone
    assert said([5, 6, 7], preempt=True) == alone


def test_the_tables_of_penalties_do_not_grow_with_the_requests_served() -> None:
    bench = Bench(capacity=2)
    for number in range(30):
        bench.add(f"r{number}", [1, 2, 3], 3, presence_penalty=1.0)
    assert len(bench.run()) == 30
    assert bench.runner._sampler._rows <= 3


COMPANY = (1, 2, 3, 20)


def test_the_end_token_is_held_back_until_the_minimum() -> None:
    params = {"ignore_eos": False, "logit_bias": {EOS: 100.0}}
    bench = Bench()
    bench.add("at once", [5], 10, **params)
    bench.add("late", [5], 10, min_tokens=4, **params)
    told = bench.run()
    assert told["at once"].tokens == [EOS]
    assert len(told["late"].tokens) == 5
    assert EOS not in told["late"].tokens[:4]
    assert (told["late"].tokens[4], told["late"].reason) == (EOS, "stop")


# --- log-probabilities ---------------------------------------------------------------------------------


def check(told: TokenLogprobs, token: int, logits: torch.Tensor, top: int) -> None:
    expected = logits.log_softmax(-1)
    assert told.token_id == token
    assert math.isclose(told.logprob, float(expected[token]), abs_tol=1e-4)
    best = expected.topk(top) if top else None
    assert list(told.top_ids) == (best.indices.tolist() if best else [])
    assert list(told.top_logprobs) == pytest.approx(best.values.tolist() if best else [], abs=1e-4)


def test_each_row_gets_as_many_alternatives_as_it_asked_for(bench: Bench) -> None:
    asked = {"none": -1, "own": 0, "three": 3, "five": 5}
    for number, (name, top) in enumerate(asked.items()):
        bench.add(name, [5 + number, 6], 6, logprobs=top)
    told = bench.run()
    assert told["none"].logprobs == []
    for number, (name, top) in enumerate(asked.items()):
        text = [5 + number, 6, *told[name].tokens]
        assert told[name].tokens == greedy(text[:2], 6)
        for place, each in enumerate(told[name].logprobs, 2):
            check(each, text[place], logits_after(text[place - 1], place - 1), max(0, top))
        assert len(told[name].logprobs) == (0 if top < 0 else 6)


def test_logprobs_are_the_models_own_whatever_was_done_to_choose_the_token() -> None:
    bench = Bench()
    bench.add(
        "r",
        [5, 6],
        8,
        temperature=1.5,
        seed=3,
        top_k=4,
        logit_bias={9: 5.0},
        presence_penalty=1.0,
        logprobs=2,
    )
    told = bench.run()["r"]
    text = [5, 6, *told.tokens]
    for place, each in enumerate(told.logprobs, 2):
        check(each, text[place], logits_after(text[place - 1], place - 1), 2)


def test_more_alternatives_than_there_are_tokens_are_all_tokens() -> None:
    bench = Bench()
    bench.add("r", [5, 6], 1, logprobs=VOCAB + 60, prompt_logprobs=VOCAB + 60)
    told = bench.run()["r"]
    assert sorted(told.logprobs[0].top_ids) == list(range(VOCAB))
    assert told.prompt_logprobs is not None
    assert told.prompt_logprobs[1] is not None
    assert sorted(told.prompt_logprobs[1].top_ids) == list(range(VOCAB))


@pytest.mark.parametrize("top", [0, 2])
def test_a_prompt_in_several_pieces_has_a_logprob_for_every_token_but_the_first(
    bench: Bench, top: int
) -> None:
    prompt = [1 + (7 * at) % 39 for at in range(75)]
    bench.add("other", [9, 8], 12)
    bench.add("r", prompt, 2, prompt_logprobs=top)
    told = bench.run()
    scores = told["r"].prompt_logprobs
    assert scores is not None
    assert (len(scores), scores[0]) == (75, None)
    for place, each in enumerate(scores[1:], 1):
        assert each is not None
        logits = logits_after(prompt[place - 1], place - 1)
        check(each, prompt[place], logits, top)
        assert each.rank == 1 + int((logits > logits[prompt[place]]).sum())
    assert told["other"].tokens == greedy([9, 8], 12)
    assert told["other"].prompt_logprobs is None


@pytest.mark.parametrize(
    ("moment", "company"),
    every(range(1, 8), COMPANY) if LARGE else [(moment, COMPANY[moment % 4]) for moment in range(1, 8)],
)
def test_a_prompt_preempted_half_way_is_scored_once_and_whole(
    bench: Bench, moment: int, company: int
) -> None:
    """Beside a sequence that decodes pieces are shorter, so those of before and after end elsewhere."""
    prompt = [1 + (5 * at) % 39 for at in range(90)]
    bench.add("other", [9, 8], company)
    bench.add("r", prompt, 3, prompt_logprobs=0)
    scores = bench.run(lambda number: bench.preempt("r") if number == moment else None)["r"].prompt_logprobs
    assert scores is not None
    assert (len(scores), scores[0]) == (90, None)
    for place, each in enumerate(scores[1:], 1):
        assert each is not None
        check(each, prompt[place], logits_after(prompt[place - 1], place - 1), 0)


def test_a_prompt_that_could_be_resumed_is_scored_whole_all_the_same() -> None:
    bench = Bench()
    prompt = list(range(1, 30))
    bench.add("warm", prompt, 1)
    bench.run()
    bench.add("r", prompt, 1, prompt_logprobs=0)
    told = bench.run()["r"]
    assert told.prompt_logprobs is not None
    assert len(told.prompt_logprobs) == 29


@pytest.mark.parametrize("moment", [None, 3])
def test_a_prompt_alone_that_fills_the_models_length_is_scored_whole(
    bench: Bench, moment: int | None
) -> None:
    prompt = [1 + (5 * at) % 39 for at in range(256)]
    bench.add("other", [9, 8], 30)
    bench.add("r", prompt, 0, prompt_logprobs=0, logprobs=0)
    told = bench.run(lambda number: bench.preempt("r") if number == moment else None)
    scores = told["r"].prompt_logprobs
    assert scores is not None
    assert (len(scores), scores[0]) == (256, None)
    for place, each in enumerate(scores[1:], 1):
        assert each is not None
        check(each, prompt[place], logits_after(prompt[place - 1], place - 1), 0)
    assert (told["r"].tokens, told["r"].logprobs, told["r"].reason) == ([], [], "length")
    assert told["other"].tokens == greedy([9, 8], 30)


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    bench = Bench()
    bench.add("r", [7], 2, prompt_logprobs=3)
    assert bench.run()["r"].prompt_logprobs == [None]


# --- failures and costs --------------------------------------------------------------------------------


def test_a_failure_of_the_device_ends_who_was_in_the_step_and_the_next_request_is_right(bench: Bench) -> None:
    bench.add("bad", [5, 6, 7], 9, presence_penalty=1.0, logprobs=1)

    def fail(number: int) -> None:
        if number == 4:
            bench.model.fail_next = True

    assert bench.run(fail)["bad"].reason == "error"
    assert bench.core.last_error == "RuntimeError: device lost"
    bench.add("good", [5, 6, 7], 9)
    assert bench.run()["good"].tokens == greedy([5, 6, 7], 9)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 5, "logprobs": 2}])
def test_a_row_that_is_no_number_ends_its_request_alone_and_with_the_reason(
    bench: Bench, spoilt: float, params: dict[str, Any]
) -> None:
    def served(spoils: int) -> dict[str, Told]:
        bench.model.spoils, bench.model.spoilt = spoils, spoilt
        for name, prompt in PROMPTS.items():
            bench.add(name, prompt, 12, **params)
        return bench.run()

    clean = served(-1)
    bench.core.cache.flush()
    # The rows that are looked at: after the prompt's last token and after every output but the last.
    looked_at = {name: [PROMPTS[name][-1], *told.tokens[:-1]] for name, told in clean.items()}
    spoils = next(
        token for token in range(VOCAB) if 0 < sum(token in each for each in looked_at.values()) < len(clean)
    )
    hurt = served(spoils)
    for name, told in clean.items():
        at = looked_at[name].index(spoils) if spoils in looked_at[name] else None
        assert hurt[name].tokens == told.tokens[:at], name
        assert hurt[name].reason == ("length" if at is None else "error"), name
    assert {told.reason for told in hurt.values()} == {"length", "error"}
    ended = next(told for told in hurt.values() if told.reason == "error")
    assert "NaN or infinity" in ended.error
    assert "--dtype float32" in ended.error


@pytest.mark.parametrize("overlap", [False, True])
def test_a_long_prompt_that_comes_to_nan_in_its_first_piece_leaves_nothing(overlap: bool) -> None:
    bench = Bench(overlap=overlap)
    bench.model.spoils = 32
    bench.add("bad", list(range(1, 38)), 4)
    assert bench.run()["bad"].reason == "error"
    assert bench.core.cache.tree.checkpoints == 0


def test_who_came_in_a_failed_step_does_not_hurt_who_came_in_the_next() -> None:
    bench = Bench(overlap=True)
    bench.add("old", [5, 6, 7], 20)

    def beside(number: int) -> None:
        if number == 4:
            bench.add("failed", [8, 9], 20)
        if number == 5:
            # Runs only now: the stream completes a step when it is waited for.
            bench.model.fail_next = True
            bench.add("innocent", [3, 4], 20)

    told = bench.run(beside)
    assert (told["old"].reason, told["failed"].reason) == ("error", "error")
    assert told["innocent"].tokens == greedy([3, 4], 20)
    assert bench.core.failed_steps == 1


def test_the_rows_of_a_long_prompt_are_scored_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "BLOCK_LOGITS", 11 * VOCAB)
    bench = Bench()
    prompt = [1 + (7 * at) % 39 for at in range(75)]
    bench.add("r", prompt, 2, prompt_logprobs=2)
    for number in range(3):
        bench.add(f"r{number}", [3, number], 4, logprobs=number)
    told = bench.run()
    scores = told["r"].prompt_logprobs
    assert scores is not None
    for place, each in enumerate(scores[1:], 1):
        assert each is not None
        check(each, prompt[place], logits_after(prompt[place - 1], place - 1), 2)
    assert bench.model.most_rows == 8


def test_parameters_are_sent_to_the_device_only_when_the_rows_change(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    real = Sampler.batch

    def counted(self: Sampler, rows: Any) -> list[SamplingBatch]:
        built.append(len(rows))
        return real(self, rows)

    monkeypatch.setattr(Sampler, "batch", counted)
    bench = Bench(overlap=True)
    bench.add("long", [1, 2], 40)
    bench.add("short", [3, 4], 10)
    bench.run()
    # Both prompts; both decoding; the long one alone.
    assert built in ([2, 1], [2, 2, 1])


def test_what_a_step_runs_on_is_what_was_there_when_it_was_launched() -> None:
    """Rows and tokens that change between launch and run, as they do under overlap, are not seen by it."""
    bench = Bench(overlap=True)
    bench.add("r", [5, 6, 7], 4)
    schedule = bench.core.scheduler.schedule(1)
    work = bench.runner.prepare(schedule)
    (piece,) = schedule.pieces
    row = piece.sequence.row
    piece.sequence.token_ids[:3] = 0
    bench.core.cache.batch.depth[row] = 99
    bench.core.cache.batch.live[row] = 99
    assert work()().tokens.tolist() == greedy([5, 6, 7], 1)


# --- what is left ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_requests_that_ask_for_log_probabilities_leave_neither_objects_nor_cycles() -> None:
    bench = Bench(overlap=True)

    def serve(requests: int) -> None:
        for number in range(requests):
            prompt = [3 + (number % 7 + place) % 20 for place in range(9)]
            bench.add(f"{requests}/{number}", prompt, 2, logprobs=3, prompt_logprobs=3)
            if number % 4 == 3:
                assert all(told.prompt_logprobs and told.logprobs for told in bench.run().values())
        bench.core.drain_step_times()

    rounds = ObjectRounds()
    gc.disable()
    try:
        for requests in (20, 100, 100, 100):
            serve(requests)
            rounds.end()
    finally:
        gc.enable()
    assert rounds.cycles == 0
    assert rounds.growth < 20
