"""A sequence: its own tokens, who goes before whom, and what is known of it at every step."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from depth_coded import oracle
from engine_trial import EngineTrial, TrialSetup
from mamba_server.engine.sequences.sequence import Phase, Sequence
from mamba_server.wire import SamplingParams


def sequence(
    prompt: list[int], outputs: int = 4, *, order: int = 0, priority: int = 0, **params: object
) -> Sequence:
    wanted = SamplingParams(max_tokens=outputs, **params)
    return Sequence("r", 0, np.array(prompt, np.int32), wanted, order=order, priority=priority)


def test_it_has_room_for_its_prompt_and_all_it_may_generate_once_it_starts() -> None:
    made = sequence([5, 6, 7], 4)
    assert made.longest == 7
    made.make_room()
    assert len(made.token_ids) == 7
    assert made.known_token_ids().tolist() == [5, 6, 7]
    assert (made.phase, made.outputs, made.target, made.row) == (Phase.WAITING, 0, 3, -1)


def test_siblings_of_one_prompt_do_not_write_into_each_other() -> None:
    prompt = np.array([5, 6, 7], np.int32)
    one, two = (Sequence("r", index, prompt, SamplingParams(max_tokens=2), order=index) for index in range(2))
    one.make_room()
    two.make_room()
    one.token_ids[one.known_tokens] = 99
    one.token_ids[0] = 98
    assert two.known_token_ids().tolist() == prompt.tolist() == [5, 6, 7]
    assert (one.key, two.key) == (("r", 0), ("r", 1))


def test_siblings_that_wait_share_their_prompt() -> None:
    engine = EngineTrial(TrialSetup(slabs=40), random.Random(0))
    engine.add([each % 90 + 1 for each in range(50)], 12, n=8)
    (group,) = engine.core.sequences.values()
    assert all(np.shares_memory(each.token_ids, group[0].token_ids) for each in group)


def test_where_memory_is_short_the_older_goes_on_whatever_the_priorities() -> None:
    young, old, urgent = sequence([1], order=9), sequence([1], order=2), sequence([1], order=50, priority=-1)
    assert sorted([young, old, urgent], key=Sequence.rank) == [old, young, urgent]


@pytest.mark.parametrize(("asked", "kept"), [(-1, None), (0, [None]), (5, [None])])
def test_prompt_logprobs_are_kept_only_when_asked_for(asked: int, kept: list | None) -> None:
    assert sequence([1, 2], prompt_logprobs=asked).prompt_logprobs == kept


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_and_what_is_sampled_differ_by_the_launched_step_alone(
    overlap: bool, seed: int
) -> None:
    """Through prefill, decode and preemption: `known <= depth + 1 <= known + 1` of a decoding one."""
    rng = random.Random(seed)
    engine = EngineTrial(TrialSetup(slabs=40, overlap=overlap, step_tokens=16), random.Random(seed))
    prompts = [[rng.randrange(1, 90) for _ in range(length)] for length in (3, 30, 50)]
    for prompt in prompts:
        engine.add(prompt, 12)
    decoded = 0
    while not engine.core.idle:
        if rng.random() < 0.2:
            engine.preempt()
        engine.step()
        for (each,) in engine.core.sequences.values():
            if each.phase is Phase.DECODE:
                launched = each.allocation.depth + 1
                assert each.known_tokens <= launched <= each.known_tokens + int(overlap)
                decoded += 1
            alone = [*prompts[int(each.request_id[1:])], *oracle(prompts[int(each.request_id[1:])], 12)]
            assert each.known_token_ids().tolist() == alone[: each.known_tokens]
    assert decoded > 12
    engine.close()


def test_a_sequence_only_moves_forward_unless_it_is_preempted() -> None:
    engine = EngineTrial(TrialSetup(slabs=40, step_tokens=16), random.Random(1))
    engine.add(list(range(1, 50)), 5)
    (watched,) = engine.core.sequences["r0"]
    seen = [watched.phase]
    while not engine.core.idle:
        engine.step()
        seen.append(watched.phase)
    assert [left for left, right in pairwise([*seen, None]) if left is not right] == [
        Phase.WAITING, Phase.PREFILL, Phase.DECODE, Phase.FINISHED,
    ]  # fmt: skip
    engine.close()
