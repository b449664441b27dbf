"""Random engines under random load with the depth-coded model: every token is the one served alone."""

import random

import pytest

from depth_coded import VOCABULARY, DepthCodedRunner, oracle
from mamba_server.cache import ledger
from mamba_server.cache.arena import AllocationSite, Arena
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.strategy import reservation
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.core import EngineCore
from mamba_server.engine.forward_stream import InlineStream, SimulatedStream
from mamba_server.engine.rows import Rows
from mamba_server.engine.scheduler import Limits, Scheduler
from mamba_server.wire import AbortRequest, AddRequest, SamplingParams, StopSequence


def build(rng: random.Random, strategy: str, overlap: bool, page_size: int, chunk: int, fail: float = 0.0):
    pages_per_slab = rng.choice([0, 1, 2, 5])
    slabs = rng.randint(8, 24)
    armed = {"on": fail > 0}

    def injected(site: AllocationSite) -> bool:
        return armed["on"] and rng.random() < fail

    arena = Arena(slabs, pages_per_slab, injected)
    tree = RadixTree(page_size, Eviction(rng.choice(["LRU", "RecomputeCost"])))
    interval = page_size * rng.choice([1, 2, 4])
    cache = StateCache(
        arena,
        tree,
        reservation(strategy, overlap=overlap),
        track_interval=interval,
        cap=rng.choice([1, 2, 4]),
    )
    rows = Rows(rng.randint(1, 6), 4096 // page_size)
    scheduler = Scheduler(
        cache, Limits(rng.choice([chunk, 2 * chunk, 1000]), chunk, rows.capacity, 4096), rows
    )
    runner = DepthCodedRunner(
        cache, rows.capacity,
        lambda row: (rows.pages[row, : rows.page_count[row]].copy(), rows.depth[row], rows.live[row]),
    )  # fmt: skip
    stream = SimulatedStream(lambda queued: rng.randint(0, queued)) if overlap else InlineStream()
    core = EngineCore(scheduler, stream, runner, overlap=overlap, eos_token_ids=frozenset({0}))
    return core, runner, armed


def drive(
    seed: int, strategy: str, overlap: bool, page_size: int, chunk: int, steps: int, fail: float
) -> int:
    rng = random.Random(seed)
    core, runner, armed = build(rng, strategy, overlap, page_size, chunk, fail)
    stems = [[rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 90))] for _ in range(3)]
    wanted: dict[str, tuple[list[int], SamplingParams, int]] = {}
    got: dict[tuple[str, int], list[int]] = {}
    ended: dict[tuple[str, int], str] = {}
    stopped: dict[tuple[str, int], int] = {}
    count = 0

    def act() -> None:
        nonlocal count
        kind = rng.random()
        if kind < 0.35 and len(core.sequences) < 12:
            stem = rng.choice(stems)
            prompt = stem[: rng.randint(1, len(stem))] + [
                rng.randrange(1, VOCABULARY) for _ in range(rng.choice([0, 1, 3, 20]))
            ]
            params = SamplingParams(max_tokens=rng.choice([1, 2, 9, 40]), ignore_eos=rng.random() < 0.5)
            name = f"r{count}"
            count += 1
            n = rng.choice([1, 1, 1, 3])
            rejected = core.add(
                AddRequest(
                    name,
                    prompt,
                    params,
                    n=n,
                    priority=rng.choice([0, 0, 1]),
                    cache_salt=rng.choice(["", "", "x"]),
                    turn_boundary=rng.choice([0, len(prompt) // 2]),
                )
            )
            if rejected is None:
                wanted[name] = (prompt, params, n)
        elif kind < 0.40 and core.sequences:
            core.abort(AbortRequest(rng.choice(list(core.sequences))))
        elif kind < 0.43 and core.sequences:
            name = rng.choice(list(core.sequences))
            index = rng.randrange(wanted[name][2])
            emitted = len(got.get((name, index), []))
            if emitted and (name, index) not in ended:
                stopped[name, index] = rng.randint(1, emitted)
                core.stop(StopSequence(name, index, stopped[name, index]))
        elif kind < 0.45 and core.scheduler.running:
            core.scheduler.preempt(rng.choice([*core.scheduler.prefilling, *core.scheduler.decoding]))
        elif kind < 0.46:
            core.cache.flush()
        elif kind < 0.48:
            wish = rng.choice(["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"])
            core.change_strategy(wish)

    def beat() -> None:
        deltas = core.step()
        assert not runner.violations, runner.violations[0]
        for delta in deltas:
            key = (delta.request_id, delta.index)
            assert key not in ended
            got.setdefault(key, []).extend(delta.token_ids)
            if delta.finish_reason:
                ended[key] = delta.finish_reason
        ledger.check(core.cache)
        runner.check_tree()

    for _ in range(steps):
        act()
        ledger.check(core.cache)
        beat()
    armed["on"] = False
    for _ in range(4000):
        if core.idle:
            break
        beat()
    assert core.idle, "the engine hangs"
    assert not core.cache.holdings
    for (name, index), tokens in got.items():
        prompt, params, _ = wanted[name]
        stop = frozenset() if params.ignore_eos else frozenset({0})
        expected = oracle(prompt, params.max_tokens, stop)
        assert tokens == expected[: len(tokens)], (name, index)
        if (name, index) in ended:
            assert tokens == expected
    core.cache.flush()
    ledger.check(core.cache)
    account = ledger.account(core.cache)
    assert account.slots_free == account.slots_total
    return core.step_number


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBuffer", "ExtraBufferLazy"])
def test_every_token_is_the_one_served_alone(strategy: str, overlap: bool) -> None:
    steps = 0
    for seed in range(40):
        page_size = [1, 4, 16][seed % 3]
        steps += drive(seed, strategy, overlap, page_size, 16, 60, 0.15 if seed % 2 else 0.0)
    assert steps > 1000
