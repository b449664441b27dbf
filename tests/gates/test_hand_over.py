"""States of prompts move by every way to the engine that answers, which then gives the bits of one engine."""

from pathlib import Path

import pytest

from engines import greedy, make_engine, run
from gate_cases import THIRD, Case
from hand_over_requests import Answers, assert_same_bits, handed, prompts_of
from joined_engines import Joined, hand_over, joined, with_peer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(random_model: Path) -> Answers:
    """Return the answers of one engine."""
    return run(make_engine(random_model, batch_invariant=True, max_running_requests=4), prompts_of(1))


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


@pytest.mark.parametrize("case", THIRD, ids=str)
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
