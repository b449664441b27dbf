"""A store takes bundles, finds them and gives them back, in host memory and on disk."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bundle_world import (
    PATIENCE,
    SHAPE,
    audit,
    bundle_files,
    disk_store,
    pages_of,
    put,
    restore,
    resumed,
    split,
    state_of,
    stored,
    tokens,
)
from mamba_prefix.page_chain import PageChain
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.errors import BadBudget, SizeMismatch
from mamba_tier.outcomes import PutOutcome, ReadOutcome

TIERS = {"host": (1 << 20, 0), "disk": (0, 1 << 20), "both": (8 << 10, 1 << 20)}


@pytest.fixture(params=TIERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BundleStore]:
    host, disk = TIERS[request.param]
    directory = tmp_path / "bundles" if disk else None
    settings = StoreSettings(host, disk, directory, staging_bytes=1 << 20)
    opened = BundleStore(SHAPE, settings)
    yield opened
    assert opened.drain(PATIENCE)
    audit(opened, directory)
    opened.close()


@pytest.mark.parametrize("depth", [4, 16, 20, 32, 60])
def test_a_stored_bundle_comes_back_byte_by_byte(store: BundleStore, depth: int) -> None:
    stored(store, tokens(depth))
    assert resumed(store, tokens(100)) == depth


def test_a_prompt_resumes_at_the_deepest_bundle_within_it(store: BundleStore) -> None:
    for depth in (16, 40, 84):
        stored(store, tokens(depth))
    assert [resumed(store, tokens(count)) for count in (12, 16, 39, 40, 83, 87, 200)] == [
        0, 16, 16, 40, 40, 84, 84,
    ]  # fmt: skip


def test_only_bundles_beyond_what_the_engine_has_are_worth_a_read(store: BundleStore) -> None:
    stored(store, tokens(40))
    assert store.lookup(tokens(100), "", above=40) is None
    assert store.lookup(tokens(100), "", above=36) is not None


@pytest.mark.parametrize("base", range(0, 60, 4))
def test_pages_that_the_engine_has_are_not_read(store: BundleStore, base: int) -> None:
    stored(store, tokens(56))
    match = store.lookup(tokens(60), "", base=base)
    assert match is not None
    assert (match.depth, match.base) == (56, min(base, 56))
    assert match.pages_bytes == (56 - min(base, 56)) // 4 * SHAPE.page_bytes
    assert restore(store, match, tokens(56)) is ReadOutcome.VALID


def test_another_salt_or_text_finds_nothing(store: BundleStore) -> None:
    stored(store, tokens(40), "one")
    assert resumed(store, tokens(40), "one") == 40
    assert store.lookup(tokens(40), "two") is None
    assert store.lookup(tokens(40, seed=1), "one") is None


@pytest.mark.parametrize("depth", [12, 40], ids=["without blocks", "with blocks"])
def test_prompts_with_equal_hashes_are_told_apart(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr(
        PageChain, "hashes", lambda self, ids, salt: np.arange(1, len(ids) // 4 + 1, dtype=np.uint64)
    )
    stored(store, tokens(depth))
    assert store.lookup(tokens(depth, seed=1), "") is None
    stored(store, tokens(depth, seed=1))
    assert resumed(store, tokens(depth, seed=1)) == depth
    assert resumed(store, tokens(depth)) in (0, depth)


def test_checkpoints_of_one_path_share_their_pages(store: BundleStore) -> None:
    stored(store, tokens(64))
    before = sum(tier.used_bytes for tier in store.status().tiers.values())
    assert store.missing_from(tokens(72), "") == 64
    stored(store, tokens(72))
    after = sum(tier.used_bytes for tier in store.status().tiers.values())
    # A header on disk, a state and two pages.
    assert after - before <= 2 * 4096
    assert resumed(store, tokens(72)) == 72


def test_a_bundle_is_known_once_it_was_accepted(store: BundleStore) -> None:
    assert put(store, tokens(40)) is PutOutcome.ACCEPTED
    assert store.missing_from(tokens(40), "") is None
    assert put(store, tokens(40)) is PutOutcome.KNOWN


def test_buffers_may_change_as_soon_as_they_were_put(store: BundleStore) -> None:
    state, pages = bytearray(state_of(tokens(40))), bytearray(pages_of(tokens(40)))
    assert store.put(tokens(40), "", split(state, 100), split(pages, 77)) is PutOutcome.ACCEPTED
    state[:], pages[:] = bytes(len(state)), bytes(len(pages))
    assert store.drain(PATIENCE)
    assert resumed(store, tokens(40)) == 40


def test_a_model_without_attention_stores_states_alone(tmp_path: Path) -> None:
    shape = BundleShape("model", "layout", page_size=4, state_bytes=5000, page_bytes=0)
    store = disk_store(tmp_path, shape=shape)
    stored(store, tokens(600), shape=shape)
    match = store.lookup(tokens(700), "")
    assert match is not None
    assert (match.depth, match.total_bytes) == (600, 5000)
    assert restore(store, match, tokens(600), shape=shape) is ReadOutcome.VALID
    assert len(bundle_files(tmp_path)) == 1
    store.close()


def test_a_store_whose_writer_is_behind_drops_what_comes(tmp_path: Path) -> None:
    settings = StoreSettings(disk_bytes=1 << 20, directory=tmp_path, staging_bytes=20_000)
    store = BundleStore(SHAPE, settings)
    # The writer cannot go on while somebody holds the lock.
    with store._lock:
        outcomes = [put(store, tokens(8, seed)) for seed in range(6)]
    assert PutOutcome.DROPPED in outcomes
    assert store.status().counters["dropped"] == outcomes.count(PutOutcome.DROPPED)
    assert store.drain(PATIENCE)
    for seed, outcome in enumerate(outcomes):
        assert resumed(store, tokens(8, seed)) == (8 if outcome is PutOutcome.ACCEPTED else 0)
    store.close()


def test_a_bundle_larger_than_the_memory_for_what_waits_is_refused(tmp_path: Path) -> None:
    settings = StoreSettings(disk_bytes=1 << 20, directory=tmp_path, staging_bytes=8 << 10)
    store = BundleStore(SHAPE, settings)
    assert put(store, tokens(40)) is PutOutcome.OFF
    assert put(store, tokens(12)) is PutOutcome.ACCEPTED
    store.close()


def test_a_bundle_that_is_evicted_after_the_lookup_is_gone(tmp_path: Path) -> None:
    store = disk_store(tmp_path, disk_bytes=9000)
    stored(store, tokens(8))
    match = store.lookup(tokens(8), "")
    assert match is not None
    stored(store, tokens(8, seed=1))
    assert restore(store, match, tokens(8)) is ReadOutcome.GONE
    assert resumed(store, tokens(8, seed=1)) == 8
    store.close()


def test_a_bundle_that_moves_to_disk_after_the_lookup_is_read_there(tmp_path: Path) -> None:
    store = BundleStore(SHAPE, StoreSettings(9000, 1 << 20, tmp_path, staging_bytes=1 << 20))
    stored(store, tokens(8))
    match = store.lookup(tokens(8), "")
    assert match is not None
    assert match.disk_bytes == 0
    for seed in range(1, 4):
        stored(store, tokens(8, seed))
    assert store.status().counters["demoted"] >= 2
    assert restore(store, match, tokens(8)) is ReadOutcome.VALID
    store.close()


def test_victims_of_the_host_tier_are_found_on_disk(tmp_path: Path) -> None:
    store = BundleStore(SHAPE, StoreSettings(16 << 10, 1 << 20, tmp_path, staging_bytes=1 << 20))
    for seed in range(12):
        stored(store, tokens(24, seed))
    status = store.status()
    assert status.tiers["host"].records + status.tiers["disk"].records == 12
    assert status.tiers["host"].records > 0
    assert [resumed(store, tokens(30, seed)) for seed in range(12)] == [24] * 12
    audit(store, tmp_path)
    store.close()


def test_readers_and_the_writer_never_mix_bundles(tmp_path: Path) -> None:
    store = BundleStore(SHAPE, StoreSettings(24 << 10, 80 << 10, tmp_path, staging_bytes=64 << 10))
    errors: list[BaseException] = []

    def read(number: int) -> None:
        try:
            for turn in range(120):
                prompt = tokens(64, (turn * 7 + number) % 9)
                match = store.lookup(prompt, "", base=turn % 8 * 4)
                if match is not None:
                    assert restore(store, match, prompt) in (ReadOutcome.VALID, ReadOutcome.GONE)
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(150):
        put(store, tokens(4 * (1 + turn % 16), turn % 9))
    for reader in readers:
        reader.join()
    assert errors == []
    assert store.drain(PATIENCE)
    # What a reader kept the writer from evicting goes with the next bundle.
    stored(store, tokens(4, seed=77))
    audit(store, tmp_path)
    store.close()


def test_a_closed_store_finds_and_takes_nothing(store: BundleStore) -> None:
    stored(store, tokens(40))
    match = store.lookup(tokens(40), "")
    assert match is not None
    store.close()
    assert store.lookup(tokens(40), "") is None
    assert put(store, tokens(8)) is PutOutcome.OFF
    assert restore(store, match, tokens(40)) is ReadOutcome.GONE


@pytest.mark.parametrize(
    ("depth", "state", "pages", "first"),
    [(10, 700, 600, 0), (8, 699, 600, 0), (8, 700, 599, 0), (0, 700, 0, 0), (20, 700, 0, 20), (8, 700, 0, 2)],
)
def test_a_put_of_wrong_sizes_is_refused(
    store: BundleStore, depth: int, state: int, pages: int, first: int
) -> None:
    with pytest.raises(SizeMismatch):
        store.put(tokens(depth), "", [memoryview(bytes(state))], [memoryview(bytes(pages))], first)


def test_a_read_into_wrong_sizes_is_refused(store: BundleStore) -> None:
    stored(store, tokens(8))
    match = store.lookup(tokens(8), "")
    assert match is not None
    with pytest.raises(SizeMismatch):
        store.read(match, [memoryview(bytearray(1))], [memoryview(bytearray(match.pages_bytes))])


@pytest.mark.parametrize(
    "settings", [{}, {"disk_bytes": 1}, {"directory": Path("x"), "host_bytes": 1}, {"host_bytes": -1}]
)
def test_budgets_that_store_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BadBudget):
        StoreSettings(**settings)  # type: ignore[arg-type]


def test_a_withdrawn_bundle_is_gone_with_what_needs_its_blocks_and_the_rest_stays(store: BundleStore) -> None:
    text, other = tokens(100), tokens(100, seed=1)
    for depth in (4, 36, 60):
        stored(store, text[:depth])
    stored(store, other[:36])
    store.withdraw(text[:36], "")
    assert resumed(store, text) == 4
    assert resumed(store, other) == 36
    stored(store, text[:60])
    assert resumed(store, text) == 60
    store.withdraw(text[:4], "")
    assert resumed(store, text[:35]) == 0


def test_a_bundle_that_is_withdrawn_before_it_is_stored_is_never_found(store: BundleStore) -> None:
    with store._lock:
        assert put(store, tokens(36)) is PutOutcome.ACCEPTED
        store.withdraw(tokens(36), "")
    assert store.drain(PATIENCE)
    assert resumed(store, tokens(100)) == 0
