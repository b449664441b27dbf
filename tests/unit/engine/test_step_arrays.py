"""The integers of a step against a slow oracle that goes token by token."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.execution.step_arrays import StepArrays, build, verified_drafts
from mamba_server.engine.sequences.schedule import Draft, Schedule
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.model.forward_batch import HostBatch
from mamba_server.wire import AddRequest, SamplingParams

FIELDS = tuple(
    name for name in HostBatch.__dataclass_fields__ if name not in {"state_noise", "replay", "ring"}
)


def slow(schedule: Schedule, trial: EngineTrial) -> dict[str, list[int]]:
    """Compute the same arrays by plain loops over sequences and tokens."""
    rows, size, chunk = trial.cache.batch, trial.setup.page_size, trial.setup.chunk
    out: dict[str, list[int]] = {name: [] for name in (*FIELDS, "token_ids")}
    out["query_start"].append(0)
    parts = []
    sampled: list[int] = []
    checked: list[int] = []
    for sequence, track in zip(schedule.decodes, schedule.decode_track.tolist(), strict=True):
        row = sequence.row
        depth = int(rows.depth[row])
        parts.append(
            (row, depth - 1, depth, int(rows.live[row]), int(rows.live[row]), rows.pages[row], None, True)
        )
        out["decode_track"].append(track or -1)
    tokens = {}
    for turn in range(max((len(draft.tokens) for draft in schedule.drafts), default=0)):
        for draft in sorted(schedule.drafts, key=lambda draft: -len(draft.tokens)):
            if turn < len(draft.tokens):
                row, start, stop, live, _, pages, *_ = parts[draft.index]
                tokens[len(parts)] = int(draft.tokens[turn])
                parts.append((row, start + turn + 1, stop + turn + 1, live, live, pages, None, True))
                out["decode_track"].append(-1)
    for piece in schedule.pieces:
        allocation = piece.sequence.allocation
        assert allocation is not None
        parts.append(
            (
                piece.sequence.row, piece.start, piece.stop, piece.slot_in, piece.slot_out,
                allocation.pages, piece, piece.final,
            )
        )  # fmt: skip
    for index, (row, start, stop, slot_in, slot_out, pages, piece, samples) in enumerate(parts):
        out["table_row"].append(row)
        out["slot_in"].append(slot_in)
        out["slot_out"].append(slot_out)
        out["context_len"].append(stop)
        tracks = {each.depth: each.slot for each in piece.checkpoints} if piece is not None else {}
        rank = 0
        for position in range(start, stop):
            if piece is not None and (position == start or position % chunk == 0 or position in tracks):
                out["chunk_start"].append(len(out["positions"]))
                out["chunk_sequence"].append(index)
                out["chunk_rank"].append(rank)
                out["chunk_len"].append(0)
                out["chunk_track"].append(-1)
                rank += 1
            out["positions"].append(position)
            out["token_sequence"].append(index)
            out["kv_row"].append(int(pages[position // size]) * size + position % size)
            known = tokens.get(index, 0) if piece is None else int(piece.sequence.token_ids[position])
            out["token_ids"].append(known)
            if piece is not None:
                out["chunk_len"][-1] += 1
                out["chunk_track"][-1] = tracks.get(position + 1, -1)
        out["query_start"].append(len(out["positions"]))
        (sampled if samples else checked).append(len(out["positions"]) - 1)
    out["logits_rows"] = sampled + checked
    return out


def compare(schedule: Schedule, trial: EngineTrial) -> StepArrays:
    arrays = build(schedule, trial.cache.batch, trial.setup.chunk, trial.setup.page_size)
    for name, values in slow(schedule, trial).items():
        made = getattr(arrays, name)
        assert made.dtype == np.int32, name
        assert made.tolist() == values, name
    HostBatch(**{name: getattr(arrays, name) for name in FIELDS}).check(
        trial.setup.chunk, trial.setup.page_size, trial.cache.batch.pages
    )
    return arrays


def test_a_draft_counts_up_to_its_first_result_that_is_not_finite() -> None:
    drafts = (Draft(1, 0, np.array([5, 6], np.int32)), Draft(0, 1, np.array([7, 8, 9], np.int32)))
    none = np.zeros(2, np.int32)
    schedule = Schedule(1, none, none, [None, None], [], drafts)  # type: ignore[list-item]
    # Two decodes; then the first tokens of both drafts, the longer one first, the second ones, the third.
    tokens, finite = np.arange(100, 107, dtype=np.int32), np.ones(7, np.bool_)
    finite[4] = False

    short, long = verified_drafts(schedule, tokens, finite, {5: "scores"})  # type: ignore[dict-item]

    assert (short.drafted, short.rows) == (2, [(5, 103, None), (6, 105, "scores")])
    assert (long.drafted, long.rows) == (3, [(7, 102, None)])


def watch(trial: EngineTrial, seen: list[StepArrays]) -> None:
    """Compare every step that `trial` launches."""
    inner = trial.runner.prepare

    def prepare(schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        seen.append(compare(schedule, trial))
        return inner(schedule)

    trial.runner.prepare = prepare


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("per_slab", "drafts"), [(0, 0), (5, 0), (5, 4)])
def test_every_step_has_the_integers_of_the_slow_oracle(page_size: int, per_slab: int, drafts: int) -> None:
    rng = random.Random(page_size)
    setup = TrialSetup(
        page_size=page_size, pages_per_slab=per_slab, slabs=90, rows=5, step_tokens=48, refusals=0.05,
        drafts=drafts,
    )  # fmt: skip
    trial, seen = EngineTrial(setup, rng), []
    watch(trial, seen)
    stem = [rng.randrange(1, 97) for _ in range(100)]
    for _ in range(12):
        trial.add([*stem[: rng.randint(1, 100)], rng.randrange(1, 97)], rng.choice([1, 5, 30]))
        for _ in range(rng.randint(1, 6)):
            trial.step()
        trial.preempt()
    trial.close()
    assert any(len(each.decode_track) and len(each.chunk_start) for each in seen), "no mixed step"
    assert any((each.chunk_track > 0).any() for each in seen)
    assert any((each.decode_track > 0).any() for each in seen)
    assert any(len(each.context_len) >= 3 for each in seen)


def test_a_sequence_beside_others_has_chunks_at_its_own_multiples() -> None:
    trial, seen = EngineTrial(TrialSetup(rows=3, slabs=40, step_tokens=200), random.Random(0)), []
    watch(trial, seen)
    trial.add(list(range(1, 8)), 1)
    trial.add(list(range(1, 60)), 1)
    trial.step()
    second = seen[0].chunk_sequence == 1
    starts = seen[0].positions[seen[0].chunk_start[second]]
    assert set(range(16, 59, 16)) <= set(starts.tolist())
    trial.close()


def test_prompt_logprobs_take_the_rows_that_predict_prompt_tokens() -> None:
    trial, spans = EngineTrial(TrialSetup(slabs=40, step_tokens=16), random.Random(0)), []
    inner = trial.runner.prepare

    def prepare(schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        arrays = build(schedule, trial.cache.batch, 16, 4)
        for first, stop, follow in arrays.prompt_spans.values():
            spans.append((arrays.positions[arrays.logits_rows[first:stop]].tolist(), follow.tolist()))
        return inner(schedule)

    trial.runner.prepare = prepare
    prompt = list(range(1, 38))
    params = SamplingParams(max_tokens=2, prompt_logprobs=0, ignore_eos=True)
    assert trial.core.add(AddRequest("p", prompt, params)) is None
    for _ in range(12):
        trial.step()
    positions = [at for rows, _ in spans for at in rows]
    follow = [token for _, tokens in spans for token in tokens]
    assert positions == list(range(36))
    assert follow == prompt[1:]
