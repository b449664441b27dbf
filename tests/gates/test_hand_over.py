"""A prompt computed by one engine and answered by another gives the bits of one engine that does both."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import CASES, LARGE, Case
from joined_engines import Joined, hand_over, joined, with_peer, with_source
from mamba_server.wire import AddRequest, SamplingParams
from testmodels.checkpoints import (
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_lfm2,
    random_mamba2,
    random_olmo_hybrid,
    random_qwen3_next,
)

pytestmark = pytest.mark.slow

OUTPUTS = 10
LEASE_SECONDS = 10.0
"""Time after which a state that the decode engine had cached already, and so never fetched, is given up."""
Answers = dict[tuple[str, int], Answer]
HITS = ["neither", "prefill", "decode", "both"]


def prompts_of(seed: int) -> list[AddRequest]:
    """Return ragged prompts around the page sizes: some of one stem, one drawn, one with two choices."""
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(150)]
    prompts = [[rng.randrange(256) for _ in range(n)] for n in (1, 16, 17, 33, 64, 65, 66, 130)]
    prompts += [stem[:shared] + [rng.randrange(256) for _ in range(9)] for shared in (100, 129, 150)]
    out = [greedy(f"r{index}", prompt, OUTPUTS) for index, prompt in enumerate(prompts)]
    drawn = SamplingParams(
        max_tokens=OUTPUTS, temperature=1.0, top_p=0.9, seed=7, logprobs=5, ignore_eos=True
    )
    out.append(AddRequest("drawn", stem, drawn))
    out.append(AddRequest("two", [*stem[:70], 1, 2], drawn, n=2))
    return out


def pair(directory: Path, case: Case) -> list[Joined]:
    """Return two engines of one model."""
    return [
        Joined(case.boot(directory, batch_invariant=True), transfer_lease=LEASE_SECONDS) for _ in range(2)
    ]


def warm_up(engine: Joined, requests: list[AddRequest]) -> None:
    """Let the engine answer the beginnings of the prompts, so that it has some of them cached."""
    engine.run(
        *(
            greedy(f"warm{index}", list(request.token_ids)[: len(request.token_ids) * 2 // 3], 2)
            for index, request in enumerate(requests)
            if len(request.token_ids) > 2
        )
    )


def assert_same_bits(got: Answers, expected: Answers) -> None:
    assert got.keys() == expected.keys()
    for key, answer in expected.items():
        assert got[key].tokens == answer.tokens, key
        for position, (ours, theirs) in enumerate(zip(got[key].logprobs, answer.logprobs, strict=True)):
            assert ours == theirs, (key, position)


@pytest.fixture(scope="module")
def expected(random_model: Path) -> Answers:
    """Return the answers of one engine."""
    return run(make_engine(random_model, batch_invariant=True, max_running_requests=4), prompts_of(1))


@pytest.mark.parametrize("hits", HITS if LARGE else ["both"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_answer_after_a_hand_over_has_the_bits_of_one_engine(
    random_model: Path, expected: Answers, case: Case, hits: str
) -> None:
    prefill, decode = pair(random_model, case)
    requests = prompts_of(1)
    with joined(prefill, decode):
        if hits in ("prefill", "both"):
            warm_up(prefill, requests)
        if hits in ("decode", "both"):
            warm_up(decode, requests)
        got = hand_over(prefill, decode, requests)
        assert_same_bits(got, expected)
        for request in requests:
            depth = (len(request.token_ids) - 1) // case.page_size * case.page_size
            assert prefill.handed[request.request_id].depth == depth
            assert got[request.request_id, 0].cached_tokens == depth
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


@pytest.mark.parametrize("case", CASES if LARGE else CASES[::2], ids=str)
def test_preemptions_on_both_sides_change_no_bit(random_model: Path, expected: Answers, case: Case) -> None:
    rng = random.Random(3)
    prefill, decode = pair(random_model, case)

    def preempt(engine: Joined) -> Callable[[], object]:
        return lambda: rng.random() < 0.2 and engine.core.scheduler.preempt_youngest()

    requests = prompts_of(1)
    with joined(prefill, decode):
        for request in requests:
            prefill.add(handed(request))
        prefill.until(lambda: prefill.core.idle, before_step=preempt(prefill))
        for request in requests:
            decode.add(with_source(request, prefill))
        decode.until(lambda: decode.core.idle, prefill, before_step=preempt(decode))
        assert_same_bits({key: decode.answers[key] for key in expected}, expected)
        assert decode.core.scheduler.counters.preemptions
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


def handed(request: AddRequest) -> AddRequest:
    return msgspec.structs.replace(request, hand_over=True, n=1)


def granite_experts(path: Path) -> Path:
    return random_granite(path, num_local_experts=8, num_experts_per_tok=3)


FAMILIES = [
    granite_experts,
    random_bamba,
    random_falcon_h1,
    random_lfm2,
    random_mamba2,
    random_olmo_hybrid,
    random_qwen3_next,
]


@pytest.mark.parametrize("write", FAMILIES)
def test_in_every_family_a_hand_over_gives_the_tokens_of_one_engine(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path, requests = write(tmp_path), prompts_of(2)
    invariant = write not in (random_olmo_hybrid, random_qwen3_next)
    settings = {"batch_invariant": invariant, "max_running_requests": 4, "dtype": "float32"}
    whole = run(make_engine(path, **settings), requests)
    prefill, decode = (Joined(make_engine(path, **settings)) for _ in range(2))
    with joined(prefill, decode):
        got = hand_over(prefill, decode, requests)
        if invariant:
            assert_same_bits(got, whole)
        assert {key: answer.tokens for key, answer in got.items()} == {
            key: answer.tokens for key, answer in whole.items()
        }
        assert decode.outcomes("in")["valid"] > len(requests) // 2
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


def test_without_a_free_slot_the_state_is_still_handed_over_at_the_last_page(random_model: Path) -> None:
    settings = {
        "strategy": "NoBuffer", "page_size": 16, "max_model_len": 224, "state_dtype": "float32",
        "max_running_requests": 2,
    }  # fmt: skip
    layout = make_engine(random_model, **settings).state_layout
    slabs_of_pages = -(-14 * layout.page_bytes // layout.slab_bytes)
    # Beside the padding slab and the pages of a prompt there is one slot: that of the live state.
    arena = (2 + slabs_of_pages) * layout.slab_bytes
    prefill = Joined(make_engine(random_model, arena_bytes=arena, **settings))
    with joined(prefill):
        for turn in range(3):
            request = handed(greedy(f"turn{turn}", [turn, *range(219)], 1))
            prefill.run(request)
            assert prefill.handed[f"turn{turn}"].depth == 208
            assert prefill.core.transfers is not None
            assert prefill.core.transfers.release(prefill.handed[f"turn{turn}"].export)
        assert prefill.core.cache.capacity.slabs == 1 + slabs_of_pages
        prefill.check_empty()


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_copies_on_the_forward_stream_change_no_bit(
    random_model: Path, expected: Answers, case: Case
) -> None:
    """A device's memory is reached by copies that are in order with the steps."""
    prefill, decode = (Joined(case.boot(random_model, batch_invariant=True), copies=True) for _ in range(2))
    with joined(prefill, decode):
        assert_same_bits(hand_over(prefill, decode, prompts_of(1)), expected)
        assert decode.outcomes("in").keys() <= {"valid", "duplicate", "cached"}
        for engine in (prefill, decode):
            engine.check_empty(prefill, decode)


def test_a_prefix_is_fetched_from_a_peer_that_has_more_of_it(random_model: Path, expected: Answers) -> None:
    peer, engine = (Joined(make_engine(random_model, batch_invariant=True, page_size=16)) for _ in range(2))
    requests = [request for request in prompts_of(1) if len(request.token_ids) > 17]
    with joined(peer, engine):
        peer.run(*requests)
        for request in requests:
            engine.add(with_peer(request, peer, (len(request.token_ids) - 1) // 16 * 16))
        engine.until(lambda: engine.core.idle, peer)
        names = {request.request_id for request in requests}
        assert_same_bits(engine.answers, {key: a for key, a in expected.items() if key[0] in names})
        assert all(engine.answers[request.request_id, 0].cached_tokens for request in requests)
        for each in (peer, engine):
            each.check_empty(peer, engine)
