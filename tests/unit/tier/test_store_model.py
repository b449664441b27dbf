"""Any order of puts, reads, restarts and damage, against a dictionary of what was stored."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bundle_world import PATIENCE, SHAPE, audit, bundle_files, pages_of, put, restore, state_of, tokens
from mamba_prefix.page_chain import Tokens
from mamba_tier.bundle_shape import StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.outcomes import PutOutcome, ReadOutcome

FORK = 24
"""Tokens that all paths have in common."""


def path(seed: int, count: int) -> Tokens:
    """Return a prefix of one of several paths that fork."""
    prompt = tokens(count, seed)
    prompt[:FORK] = tokens(FORK)[:count]
    return prompt


DEPTHS = st.integers(1, 18).map(lambda pages: 4 * pages)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), DEPTHS, st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 2), DEPTHS, st.integers(0, 18)),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("damage"), st.integers(0, 9), st.integers(0, 9000), st.just(0)),
    ),
    max_size=25,
)
BUDGETS = st.sampled_from([0, 9 << 10, 30 << 10, 1 << 20])


def opened(directory: Path, host: int, disk: int) -> BundleStore:
    return BundleStore(SHAPE, StoreSettings(host, disk, directory if disk else None, staging_bytes=1 << 20))


def damage(directory: Path, number: int, place: int) -> bool:
    """Flip a bit of a file on disk. Returns whether there was a file."""
    files = bundle_files(directory) if directory.exists() else []
    if not files:
        return False
    file = files[number % len(files)]
    raw = bytearray(file.read_bytes())
    raw[place % len(raw)] ^= 8
    file.write_bytes(raw)
    return True


@given(STEPS, BUDGETS, BUDGETS.filter(bool), st.booleans())
@settings(max_examples=120)
def test_every_restore_is_right_and_nothing_is_lost_while_there_is_room(
    steps: list[tuple[str, int, int, int]], host: int, disk: int, with_disk: bool
) -> None:
    disk = disk if with_disk else 0
    if not host + disk:
        return
    directory = Path(tempfile.mkdtemp())
    store = opened(directory, host, disk)
    model: dict[bytes, int] = {}
    exact = max(host, disk) == 1 << 20
    try:
        for what, number, depth, extra in steps:
            if what == "put":
                prompt = path(number, depth)
                outcome = put(store, prompt, sparse=bool(extra))
                assert store.drain(PATIENCE)
                if outcome is PutOutcome.KNOWN:
                    assert not exact or prompt.tobytes() in model
                if outcome is PutOutcome.ACCEPTED:
                    model[prompt.tobytes()] = depth
            elif what == "read":
                check_read(store, path(number, depth), 4 * extra, model, exact=exact)
            elif what == "restart":
                store.close()
                store = opened(directory, host, disk)
                if not disk or host:
                    model.clear()
                    exact = False
            elif damage(directory, number, depth):
                exact = False
            assert store.drain(PATIENCE)
            audit(store, directory if disk else None)
    finally:
        store.close()
        shutil.rmtree(directory)


def check_read(
    store: BundleStore, prompt: Tokens, base: int, model: dict[bytes, int], *, exact: bool
) -> None:
    depths = [depth for depth in range(4, len(prompt) + 1, 4) if prompt[:depth].tobytes() in model]
    match = store.lookup(prompt, "", base=base)
    if exact:
        assert (0 if match is None else match.depth) == max(depths, default=0)
    if match is None:
        return
    outcome = restore(store, match, prompt)
    assert outcome is ReadOutcome.VALID if exact else outcome is not ReadOutcome.GONE


def test_the_model_tells_paths_apart() -> None:
    assert state_of(path(1, FORK)) == state_of(path(2, FORK))
    assert state_of(path(1, FORK + 4)) != state_of(path(2, FORK + 4))
    assert pages_of(path(1, 40), FORK) != pages_of(path(2, 40), FORK)
