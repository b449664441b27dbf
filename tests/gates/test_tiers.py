"""A state from a tier has the bits of one that never left the arena; a damaged one does not come back."""

import random
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engines import Answer, greedy, make_engine, run
from gate_cases import LARGE, OTHER_THIRD, SQUARE, THIRD, Case
from joined_engines import Joined, joined
from mamba_api.choices import FP8_PAGES
from mamba_server.engine.boot import Engine
from mamba_server.wire import AddRequest

pytestmark = pytest.mark.slow

OUTPUTS = 6
TIERED: dict[str, Any] = {"transfer_port": None}


def prompts(seed: int, count: int = 6) -> list[AddRequest]:
    """Return prompts of which each fills a good part of a small arena."""
    rng = random.Random(seed)
    lengths = [150, 160, 161, 162, 177, 200]
    return [
        greedy(f"p{number}", [rng.randrange(256) for _ in range(lengths[number % len(lengths)])], OUTPUTS)
        for number in range(count)
    ]


@cache
def slab_bytes(path: Path, page_size: int, pages: str = "auto") -> int:
    return make_engine(path, page_size=page_size, kv_cache_dtype=pages).state_layout.slab_bytes


def small(path: Path, case: Case | None = None, *, pages: str = "auto") -> Engine:
    """Boot an engine whose arena holds a few states beside the pages of a prompt, of that type."""
    page_size = 16 if case is None else case.page_size
    sizes = {
        "arena_bytes": 13 * slab_bytes(path, page_size, pages), "max_model_len": 256,
        "batch_invariant": True, "max_running_requests": 2, "state_dtype": "float32",
        "kv_cache_dtype": pages,
    }  # fmt: skip
    return make_engine(path, page_size=16, **sizes) if case is None else case.boot(path, **sizes)


def again(requests: list[AddRequest], engine: Joined) -> dict[str, Answer]:
    """Answer the requests one by one; return the answers by request id."""
    out = {}
    for request in requests:
        engine.answers.clear()
        out[request.request_id] = engine.run(request)[request.request_id, 0]
    return out


def answers_of_one_engine(
    path: Path, requests: list[AddRequest], *, pages: str = "auto"
) -> dict[str, Answer]:
    engine = make_engine(path, batch_invariant=True, kv_cache_dtype=pages)
    return {name: answer for (name, _), answer in run(engine, requests).items()}


def restored(engine: Joined) -> int:
    return engine.outcomes("restored").get("valid", 0)


@pytest.mark.parametrize(
    ("kind", "case", "pages"),
    [
        *((kind, case, "auto") for kind, cases in (("host", THIRD), ("disk", OTHER_THIRD)) for case in cases),
        *((kind, case, FP8_PAGES) for kind, case in zip(("host", "disk"), SQUARE[2:4], strict=True)),
    ],
    ids=str,
)
def test_a_restored_state_gives_the_bits_of_a_computed_one(
    random_model: Path, tmp_path: Path, kind: str, case: Case, pages: str
) -> None:
    requests = prompts(1)
    expected = answers_of_one_engine(random_model, requests, pages=pages)
    tier = (
        {"host_memory": 64 << 20}
        if kind == "host"
        else {"disk_cache": str(tmp_path), "disk_cache_bytes": 64 << 20}
    )
    engine = Joined(small(random_model, case, pages=pages), **tier, **TIERED)
    with joined(engine):
        again(requests, engine)
        assert engine.core.transfers.tier.store.drain(30.0)
        second = again(requests, engine)
        assert all(same_bits(second[name], expected[name]) for name in expected)
        assert restored(engine)
        assert sum(answer.cached_tokens for answer in second.values()) > 300
        engine.check_empty()


def test_prompts_of_one_stem_share_its_blocks_in_the_store(random_model: Path) -> None:
    """Blocks of pages have 256 tokens: what is offered begins behind those that the store has."""
    rng = random.Random(9)
    stem = [rng.randrange(256) for _ in range(530)]
    branches = [
        greedy(f"b{number}", [*stem, number, *(rng.randrange(256) for _ in range(60))], OUTPUTS)
        for number in range(4)
    ]
    expected = answers_of_one_engine(random_model, branches)
    sizes = {"arena_bytes": 20 * slab_bytes(random_model, 16), "state_dtype": "float32"}
    engine = Joined(
        make_engine(
            random_model,
            page_size=16,
            max_running_requests=1,
            max_model_len=640,
            batch_invariant=True,
            **sizes,
        ),
        host_memory=64 << 20,
        **TIERED,
    )
    with joined(engine):
        for _ in range(3):
            got = again(branches, engine)
            assert all(same_bits(got[name], expected[name]) for name in expected)
            assert engine.core.transfers.tier.store.drain(30.0)
        assert restored(engine) >= 3
        engine.check_empty()


def test_a_disk_that_hangs_costs_a_recomputation_after_one_lease(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = prompts(10)
    expected = answers_of_one_engine(random_model, requests)
    tier = {"disk_cache": str(tmp_path), "disk_cache_bytes": 64 << 20, **TIERED}
    booted, lease, skipped = small(random_model), 1000.0, [0.0]
    booted.core.clock = lambda: time.monotonic() + sum(skipped)
    engine = Joined(booted, transfer_lease=lease, **tier)
    hangs, go = threading.Event(), threading.Event()
    with joined(engine):
        again(requests, engine)
        store = engine.core.transfers.tier.store
        assert store.drain(30.0)
        read = store.read

        def stall(*buffers: Any) -> Any:
            hangs.set()
            go.wait()
            return read(*buffers)

        monkeypatch.setattr(store, "read", stall)
        engine.answers.clear()
        try:
            engine.add(requests[0])
            engine.until(hangs.is_set)
            skipped.append(1.01 * lease)
            engine.until(lambda: engine.core.idle)
        except BaseException:
            go.set()
            raise
        name = requests[0].request_id
        assert same_bits(engine.answers[name, 0], expected[name])
        assert engine.outcomes("restored")["timeout"]
        assert engine.core.cache.capacity.quarantined
        go.set()
        engine.check_empty()


@pytest.mark.parametrize("case", OTHER_THIRD if LARGE else OTHER_THIRD[1:], ids=str)
def test_states_pass_the_ring_of_a_device_and_come_back(random_model: Path, case: Case) -> None:
    requests = prompts(1)
    expected = answers_of_one_engine(random_model, requests)
    engine = Joined(small(random_model, case), copies=True, host_memory=64 << 20, **TIERED)
    with joined(engine):
        for _ in range(3):
            got = again(requests, engine)
            assert all(same_bits(got[name], expected[name]) for name in expected)
            engine.until(lambda: not engine.core.transfers.tier.pending)
            assert engine.core.transfers.tier.store.drain(30.0)
        assert engine.outcomes("demoted").get("stored")
        assert restored(engine)
        engine.check_empty()


def same_bits(one: Answer, other: Answer) -> bool:
    return (one.tokens, one.logprobs) == (other.tokens, other.logprobs)


def test_prompts_around_a_stored_depth_take_what_lies_before_their_last_token(
    random_model: Path, tmp_path: Path
) -> None:
    whole = prompts(2, 1)[0].token_ids
    near = [greedy(f"n{length}", list(whole)[:length], OUTPUTS) for length in (143, 144, 145, 146)]
    expected = answers_of_one_engine(random_model, near)
    engine = Joined(small(random_model), disk_cache=str(tmp_path), disk_cache_bytes=64 << 20, **TIERED)
    with joined(engine):
        again([greedy("whole", list(whole)[:146], 1), *prompts(3)], engine)
        assert engine.core.transfers.tier.store.drain(30.0)
        for request in near:
            again(prompts(4), engine)
            answer = again([request], engine)[request.request_id]
            assert same_bits(answer, expected[request.request_id])
            if len(request.token_ids) > 144:
                assert answer.cached_tokens == 144
        assert restored(engine)
        engine.check_empty()


def test_states_survive_a_restart_on_disk_alone(random_model: Path, tmp_path: Path) -> None:
    requests = prompts(5)
    tier = {"disk_cache": str(tmp_path), "disk_cache_bytes": 64 << 20, **TIERED}
    first = Joined(small(random_model), **tier)
    with joined(first):
        expected = again(requests, first)
        assert first.core.transfers.tier.store.drain(30.0)
    second = Joined(small(random_model), **tier)
    with joined(second):
        got = again(requests, second)
        assert all(same_bits(got[name], expected[name]) for name in expected)
        assert restored(second) >= 2
        second.check_empty()


def test_an_engine_that_failed_leaves_nothing_on_disk_but_what_was_evicted(
    random_model: Path, tmp_path: Path
) -> None:
    tier = {"disk_cache": str(tmp_path), "disk_cache_bytes": 64 << 20, **TIERED}
    request = prompts(11, 1)[0]
    for save, depth in ((False, 0), (True, 144)):
        first = Joined(small(random_model), **tier)
        again([request], first)
        first.close(save=save)
        second = Joined(small(random_model), **tier)
        with joined(second):
            assert again([request], second)[request.request_id].cached_tokens == depth


@pytest.mark.parametrize("seed", range(4 if LARGE else 1))
def test_a_flipped_bit_is_a_miss_with_its_own_cause(random_model: Path, tmp_path: Path, seed: int) -> None:
    requests = prompts(6)
    tier = {"disk_cache": str(tmp_path), "disk_cache_bytes": 64 << 20, **TIERED}
    first = Joined(small(random_model), **tier)
    with joined(first):
        expected = again(requests, first)
        assert first.core.transfers.tier.store.drain(30.0)
    rng = random.Random(seed)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 20_000:
            data = bytearray(path.read_bytes())
            data[rng.randrange(8192, len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
    second = Joined(small(random_model), **tier)
    with joined(second):
        got = again(requests, second)
        assert all(same_bits(got[name], expected[name]) for name in expected)
        corrupt = second.outcomes("restored").get("corrupt", 0)
        assert corrupt == second.core.scheduler.counters.misses["corrupt"]
        assert corrupt + second.core.transfers.tier.store.status().counters.get("corrupt", 0)
        second.check_empty()


def test_poison_in_free_memory_does_not_reach_a_restored_state(random_model: Path, tmp_path: Path) -> None:
    requests = prompts(7)
    expected = answers_of_one_engine(random_model, requests)
    engine = Joined(small(random_model), host_memory=64 << 20, **TIERED)
    with joined(engine):
        again(requests, engine)
        assert engine.core.transfers.tier.store.drain(30.0)
        engine.core.flush_cache()
        while engine.core.cache.sweeping:
            engine.core.cache.sweep()
        engine.engine.memory.fill_(0xFF)
        got = again(requests, engine)
        assert restored(engine)
        assert all(same_bits(got[name], expected[name]) for name in expected)
        engine.check_empty()
