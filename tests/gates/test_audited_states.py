"""States that came from elsewhere are audited like those of the engine, and their source is named."""

import random
from pathlib import Path

import numpy as np
import pytest

from engines import greedy, make_engine
from flipped_bits import HIGHEST_EXPONENT_BIT, flip_state_bit
from joined_engines import Joined, hand_over, joined
from mamba_server.engine.audits.audit_log import AuditResult
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.wire import AddRequest

pytestmark = pytest.mark.slow

OUTPUTS = 6


def requests(count: int) -> list[AddRequest]:
    rng = random.Random(7)
    return [
        greedy(f"r{number}", [rng.randrange(256) for _ in range(140 + number)], OUTPUTS)
        for number in range(count)
    ]


def audited(engine: Joined) -> list[AuditResult]:
    audits = engine.core.audits
    assert isinstance(audits, ResumedAnswers)
    engine.until(lambda: not audits.due)
    return list(audits.log.results)


def test_an_answer_after_a_hand_over_is_audited_and_names_the_other_engine(random_model: Path) -> None:
    prefill, decode = (
        Joined(make_engine(random_model, audit_share=1.0, max_running_requests=2)) for _ in range(2)
    )
    with joined(prefill, decode):
        hand_over(prefill, decode, requests(1))
        [result] = audited(decode)
        assert (result.outcome, result.origin) == ("ok", "hand_over")
        assert result.lineage is not None
        assert result.lineage.provenance.request_id == "r0"
        assert result.lineage.provenance.place.startswith(str(prefill.endpoint.address))
        assert result.lineage.provenance.place.endswith(prefill.endpoint.incarnation)
        assert result.state_distance is not None


def test_a_wrong_state_that_comes_from_another_engine_is_found(random_model: Path) -> None:
    prefill, decode = (
        Joined(make_engine(random_model, audit_share=1.0, max_running_requests=2)) for _ in range(2)
    )
    [request] = requests(1)
    with joined(prefill, decode):
        prefill.run(request)
        flip_state_bit(prefill.engine, list(request.token_ids), HIGHEST_EXPONENT_BIT, random.Random(1))
        hand_over(prefill, decode, [greedy("again", list(request.token_ids), OUTPUTS)])
        [result] = audited(decode)
        assert (result.outcome, result.origin) == ("diverged", "hand_over")


def test_a_wrong_state_that_a_tier_kept_is_found_and_leaves_the_tier(random_model: Path) -> None:
    sizes = {
        "page_size": 16, "max_model_len": 256, "max_running_requests": 2, "state_dtype": "float32",
        "eviction": "LRU",
    }  # fmt: skip
    slab = make_engine(random_model, **sizes).state_layout.slab_bytes
    engine = Joined(
        make_engine(random_model, audit_share=1.0, arena_bytes=24 * slab, overlap=False, **sizes),
        host_memory=64 << 20,
        transfer_port=None,
    )
    first, *others = requests(12)
    prompt, tokens = list(first.token_ids), np.array(first.token_ids, np.int32)
    with joined(engine):
        engine.run(first)
        flip_state_bit(engine.engine, prompt, HIGHEST_EXPONENT_BIT, random.Random(2))
        for other in others:
            engine.run(other)
        store = engine.core.transfers.tier.store
        assert store.drain(30.0)
        kept = store.lookup(tokens, "")
        assert kept is not None
        engine.run(greedy("again", prompt, OUTPUTS))
        result = audited(engine)[-1]
        assert (result.outcome, result.origin) == ("diverged", "tier"), result
        assert result.lineage is not None
        assert result.lineage.provenance.place == "memory"
        found = store.lookup(tokens, "")
        assert found is None or found.depth < kept.depth
        assert engine.run(greedy("last", prompt, OUTPUTS))["last", 0].cached_tokens < kept.depth
