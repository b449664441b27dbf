"""Decode steps can be CUDA graphs: they issue the same on the same memory, and repeating that serves right.

The conditions of a graph are shown without a GPU: nothing between a step's first and last operator reads a
tensor, steps of one number of rows issue the same list with the same memory, and an engine whose steps are
repetitions of what was recorded once answers as one that issues every step anew.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engines import Answer, make_engine, run
from gate_cases import LARGE
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_kernels.triton_support import UnsupportedArgument
from mamba_server.engine.boot import BootOverrides
from mamba_server.engine.execution import runner
from mamba_server.engine.execution.decode_step import DecodeStep
from mamba_server.engine.execution.decode_steps import decode_buckets
from mamba_server.model.decode_inputs import DecodeInputs
from mamba_server.model.forward_batch import HostBatch
from mamba_server.wire import AddRequest, SamplingParams
from recorded_work import Described, RecordedGraphs, RecordedWork
from testmodels.checkpoints import random_granite

RANDOM = SamplingParams(max_tokens=6, temperature=1.0, seed=7, top_k=40, top_p=0.9, min_p=0.01)
PENALIZED = SamplingParams(
    max_tokens=6, temperature=0.7, seed=9, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1
)
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
SCORED = SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=1)
HELD_BACK = SamplingParams(max_tokens=5, min_tokens=4, logit_bias={17: 3.0})


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the splits: idle programs take the interpreter as long as others."""
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)


def requests(seed: int) -> list[AddRequest]:
    """Return ragged requests of every kind of row, two from one stem, the same for all seeds."""
    rng = random.Random(seed)
    stem = [rng.randrange(6, 200) for _ in range(rng.randint(20, 70))]
    prompts = [stem, [*stem[:17], 9, 8], [rng.randrange(6, 200) for _ in range(rng.randint(1, 9))]]
    kinds = [RANDOM, GREEDY, PENALIZED]
    return [AddRequest(f"{seed}-{n}", prompts[n], kinds[n]) for n in range(3)]


def lasting(request: AddRequest, tokens: int) -> AddRequest:
    return replace(request, params=replace(request.params, max_tokens=tokens, ignore_eos=True))


Issued = dict[int, list[RecordedWork]]


def record(monkeypatch: pytest.MonkeyPatch, *, compute: bool) -> Issued:
    """Record what each later step of this many rows issues, its first part and its second."""
    seen: Issued = defaultdict(list)
    forward, choice = DecodeStep._issue_forward, DecodeStep._issue_choice

    def record_forward(step: DecodeStep) -> Any:
        seen[step.rows].append(RecordedWork(compute=compute))
        with seen[step.rows][-1]:
            return forward(step)

    def record_choice(step: DecodeStep) -> Any:
        with seen[step.rows][-1]:
            return choice(step)

    monkeypatch.setattr(DecodeStep, "_issue_forward", record_forward)
    monkeypatch.setattr(DecodeStep, "_issue_choice", record_choice)
    return seen


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> Issued:
    return record(monkeypatch, compute=True)


def _differing(left: list[Described], right: list[Described]) -> Iterator[Any]:
    """Yield the differences of both, in order."""
    for ours, theirs in zip_longest(left, right):
        if ours != theirs:
            yield ours, theirs


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
@pytest.mark.parametrize("experts", [False, True])
def test_steps_of_one_number_of_rows_issue_the_same_on_the_same_memory(
    two_layers: Path, tmp_path: Path, issued: Issued, experts: bool
) -> None:
    """Run three rows that end one after the other, so that each kind is the last once.

    Steps have four, two and one row, with varying contents and earlier steps.
    """
    path = two_layers
    if experts:
        layers = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
        path = random_granite(tmp_path, **layers, num_local_experts=4, num_experts_per_tok=2)
    engine = make_engine(path, max_running_requests=4)
    for seed in range(3):
        run(engine, [lasting(each, 3 + 2 * ((n + seed) % 3)) for n, each in enumerate(requests(seed))])
    for rows in (4, 2, 1):
        first, *others = (each.described for each in issued[rows])
        assert len(others) >= 5
        assert first
        for each in others:
            assert [*_differing(each, first)] == []


def test_every_bucket_issues_the_same_whatever_its_rows_are(
    two_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vary rows and padding, tracking and depth, with every kind of choice.

    The kernels are not run: no step reads their results, so these can change nothing of what is issued.
    """
    most = 1024 if LARGE else 128
    engine = make_engine(two_layers, max_running_requests=most, arena_bytes=256 << 20)
    issued = record(monkeypatch, compute=False)
    device_side: Any = engine.core._runner
    sampler = device_side._sampler
    rng = np.random.default_rng(4)
    buckets = decode_buckets(most)
    for rows in buckets:
        step = device_side._decode_step(rows)
        for turn, sequences in enumerate((rows, max(1, rows - 1))):
            kinds = [(RANDOM, GREEDY, GREEDY, PENALIZED)[(n + turn) % 4] for n in range(sequences)]
            admitted = [sampler.admit(kind, n, 3, np.arange(3 + n % 5)) for n, kind in enumerate(kinds)]
            sampler.set_up_counts([each for each in admitted if each.counts_row >= 0])
            device_side._last_token.zero_()
            step.forward(random_decodes(rng, sequences))
            step.choose(admitted)
            for each in admitted:
                sampler.release(each)
        first, second = (each.described for each in issued[rows])
        assert first
        assert [*_differing(second, first)] == [], rows
    assert issued.keys() == set(buckets)


def random_decodes(rng: np.random.Generator, n: int) -> HostBatch:
    slots = rng.permutation(np.arange(1, 2 * n + 1)).astype(np.int32)
    context = rng.integers(1, 60, n).astype(np.int32)
    none = np.empty(0, np.int32)
    return HostBatch(
        positions=context - 1, token_sequence=np.arange(n, dtype=np.int32),
        query_start=np.arange(n + 1, dtype=np.int32), context_len=context, slot_in=slots[:n],
        slot_out=slots[:n], decode_track=np.where(rng.random(n) < 0.5, slots[n:], -1).astype(np.int32),
        table_row=rng.permutation(n).astype(np.int32), kv_row=rng.integers(16, 64, n).astype(np.int32),
        chunk_start=none, chunk_len=none, chunk_sequence=none, chunk_rank=none, chunk_track=none,
        logits_rows=np.arange(n, dtype=np.int32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def anew(two_layers: Path) -> dict[tuple[str, int], Answer]:
    """Issue every step again by the layers' general entry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_attention, "PROGRAMS", 4)
        patch.setattr("mamba_server.model.layers.hybrid.HybridModel.decodes_resident", False)
        return _serve(make_engine(two_layers, max_running_requests=4, track_interval=16))


def _serve(engine: Any) -> dict[tuple[str, int], Answer]:
    answers = run(engine, requests(1))
    # A hit on what the first ones left behind; then rows that want more than a token beside others.
    answers |= run(engine, requests(2)[:1])
    mixed = requests(3)
    mixed[1] = AddRequest("scored", mixed[1].token_ids, SCORED)
    mixed[2] = AddRequest("held back", mixed[2].token_ids, HELD_BACK, n=2)
    return answers | run(engine, mixed)


def test_repeated_steps_say_what_steps_issued_anew_say(
    two_layers: Path, anew: dict[tuple[str, int], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked: list[int] = []
    write = DecodeInputs.write

    def watched(inputs: DecodeInputs, batch: HostBatch, page_size: int) -> None:
        tracked.append(int((batch.decode_track > 0).sum()))
        write(inputs, batch, page_size)

    monkeypatch.setattr(DecodeInputs, "write", watched)
    graphs = RecordedGraphs()
    engine = make_engine(
        two_layers, trial=BootOverrides(graphs=graphs), max_running_requests=4, track_interval=16
    )
    answers = _serve(engine)
    assert sum(tracked) > 0, "some state was tracked"
    assert graphs.repeated > 20
    assert answers.keys() == anew.keys()
    for key, answer in answers.items():
        assert answer.tokens == anew[key].tokens, key
        assert [each.token_id for each in answer.logprobs] == [each.token_id for each in anew[key].logprobs]


def test_a_read_between_two_operators_is_seen() -> None:
    def work() -> torch.Tensor:
        numbers = torch.ones(3) * 2
        return numbers * numbers.sum().item()

    with pytest.raises(RuntimeError, match="reads a tensor"):
        RecordedGraphs().capture(work)


def test_another_input_is_seen() -> None:
    lists = []
    kept = [torch.ones(3), torch.ones(3)]
    for each in kept:
        with RecordedWork() as recorder:
            each + 1
        lists.append(recorder.described)
    assert lists[0] != lists[1]


def test_what_is_prepared_at_the_start_changes_no_answer(
    two_layers: Path, anew: dict[tuple[str, int], Answer]
) -> None:
    graphs = RecordedGraphs()
    engine = make_engine(
        two_layers, trial=BootOverrides(graphs=graphs), max_running_requests=2, chunked_prefill_tokens=128
    )
    device_side: Any = engine.core._runner
    stages: list[str] = []
    assert device_side.warm_up(lambda stage, done, total: stages.append(f"{stage} {done}/{total}"))
    stage, _, count = stages[-1].rpartition(" ")
    done, total = count.split("/")
    assert (stage, done) == ("preparing prompts", total)
    made = len(graphs.captured)
    assert made == 2 * 2
    answers = run(engine, requests(1)[:1])
    assert answers["1-0", 0].tokens == anew["1-0", 0].tokens
    assert len(graphs.captured) == made


def test_a_model_that_a_kernel_cannot_take_is_served_without_graphs(
    two_layers: Path, anew: dict[tuple[str, int], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise UnsupportedArgument("not this one")

    graphs = RecordedGraphs()
    engine = make_engine(two_layers, trial=BootOverrides(graphs=graphs), max_running_requests=2)
    monkeypatch.setattr(engine.kernels.operators.state_update, "kernel", refuse)
    answers = run(engine, requests(1)[:1])
    assert answers["1-0", 0].tokens == anew["1-0", 0].tokens
    assert not graphs.captured


def test_more_penalties_than_there_is_room_for_are_counted_right(
    two_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COUNTED", 1)
    prompts = [list(range(20 + n, 29 + n)) for n in range(3 if LARGE else 2)]
    asked = [AddRequest(str(n), prompt, PENALIZED) for n, prompt in enumerate(prompts)]
    graphs = RecordedGraphs()
    engine = make_engine(two_layers, trial=BootOverrides(graphs=graphs), max_running_requests=4)
    few = run(engine, asked[:1])
    repeated = graphs.repeated
    many = run(engine, [AddRequest(f"again {n}", prompt, PENALIZED) for n, prompt in enumerate(prompts)])
    alone = make_engine(two_layers, max_running_requests=4)
    for n, each in enumerate(asked):
        expected = run(alone, [each])[each.request_id, 0].tokens
        assert many[f"again {n}", 0].tokens == expected
        assert n > 0 or few["0", 0].tokens == expected
        # By the step that was captured before the counts moved.
        assert run(engine, [each])[each.request_id, 0].tokens == expected
    assert graphs.repeated > repeated, "the layers are repeated as before"


@pytest.mark.skipif(not LARGE, reason="MAMBASERVE_GATES=large")
def test_float16_states_have_the_same_bits_in_repeated_steps_as_in_steps_issued_anew(
    two_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def states(engine: Any) -> torch.Tensor:
        run(engine, [AddRequest("a", list(range(7, 40)), GREEDY)])
        layers: torch.Tensor = torch.stack(list(engine.core._runner._cache.ssm))
        return layers.nan_to_num()

    settings: dict[str, Any] = {"max_running_requests": 2, "state_dtype": "float16"}
    repeated = states(make_engine(two_layers, trial=BootOverrides(graphs=RecordedGraphs()), **settings))
    monkeypatch.setattr("mamba_server.model.layers.hybrid.HybridModel.decodes_resident", False)
    anew = states(make_engine(two_layers, **settings))
    assert repeated.dtype == torch.float16
    assert repeated.any()
    # Slot 0 is where padding may write.
    assert torch.equal(repeated[:, 1:], anew[:, 1:])
