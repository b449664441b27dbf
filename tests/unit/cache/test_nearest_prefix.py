"""The nearest cached prompt: how far it goes, how it goes on, and whose text is never shown."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_bench import CacheBench, flush_and_sweep, ids
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import SHOWN_TOKENS
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.scheduling.prefix_explanation import dry_run, explain

PAGE = 4
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=22)
CLIENTS = st.sampled_from(["", "ann", "bob"])
Inserted = list[tuple[list[int], str, str]]


def common(left: list[int], right: list[int]) -> int:
    """Return how many tokens two texts share from their start."""
    return next(
        (i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )


def expected(inserted: Inserted, prompt: list[int], salt: str, client: str) -> int:
    """Return the depth by comparison with every cached text: whole pages only, where a page is another's."""
    owners: dict[tuple[str, tuple[int, ...]], str] = {}
    best = 0
    for text, of_salt, owner in inserted:
        for end in range(PAGE, len(text) + 1, PAGE):
            owners.setdefault((of_salt, tuple(text[:end])), owner)
    for of_salt, text in owners:
        if of_salt == salt:
            shared = common(list(text), prompt)
            own = owners[of_salt, text] == client or shared % PAGE == 0
            # The first page in which the two differ decides: the pages before it are equal to the prompt's.
            if own and shared > len(text) - PAGE:
                best = max(best, shared)
            best = max(best, min(shared, len(text)) // PAGE * PAGE)
    return best


@settings(max_examples=200)
@given(st.lists(st.tuples(TEXTS, st.sampled_from(["", "s"]), CLIENTS), max_size=6), TEXTS, CLIENTS)
def test_the_depth_is_the_longest_common_prefix_with_any_cached_prompt(
    texts: Inserted, prompt: list[int], client: str
) -> None:
    tree, inserted, owned = RadixTree(PAGE, Eviction("LRU")), [], set()
    for text, salt, owner in texts:
        whole = text[: len(text) // PAGE * PAGE]
        if whole:
            tokens = np.array(whole, np.int32)
            tree.insert(tokens, tokens[::PAGE].copy(), 0, 1, salt, client=owner)
            inserted.append((whole, salt, owner))
            owned |= {tuple(whole)} if owner == client and salt == "" else set()
    nearest = tree.nearest(np.array(prompt, np.int32), "", client)
    assert nearest.depth == expected(inserted, prompt, "", client)
    shown = prompt[: nearest.depth] + nearest.continuation.tolist()
    cached = [text for text, salt, _ in inserted if salt == ""]
    assert not len(nearest.continuation) or any(text[: len(shown)] == shown for text in cached)
    # Text behind the prompt's own is shown to those alone who brought it under this salt.
    if len(nearest.continuation):
        assert any(list(text[: len(shown)]) == shown for text in owned)


def test_a_text_of_another_key_or_salt_is_never_shown_nor_measured_by_the_token() -> None:
    tree = RadixTree(PAGE, Eviction("LRU"))
    secret = ids(range(12))
    tree.insert(secret, secret[::PAGE].copy(), 0, 1, "", client="ann")
    guess = ids(range(6), 99, 98)
    assert tree.nearest(guess, "", "ann")[:3:2] == (6, False)
    assert tree.nearest(guess, "", "ann").continuation.tolist() == list(range(6, 12))
    for client in ("", "bob"):
        nearest = tree.nearest(guess, "", client)
        assert (nearest.depth, nearest.continuation.tolist(), nearest.hidden) == (4, [], True)
    nearest = tree.nearest(guess, "other salt", "ann")
    assert (nearest.depth, nearest.continuation.tolist(), nearest.hidden) == (0, [], False)


def test_what_came_from_outside_is_shown_only_where_nobody_has_a_name() -> None:
    tree = RadixTree(PAGE, Eviction("LRU"))
    tree.insert(ids(range(8)), ids(0, 4), 0, 1, "")
    assert tree.nearest(ids(0, 1), "", "").continuation.tolist() == list(range(2, 8))
    assert tree.nearest(ids(0, 1), "", "ann").hidden


def test_a_long_text_is_shown_in_part_and_a_split_keeps_its_owner() -> None:
    tree = RadixTree(PAGE, Eviction("LRU"))
    long = ids(range(400))
    tree.insert(long, long[::PAGE].copy(), 0, 1, "", client="ann")
    other = ids(range(40), range(1000, 1004))
    tree.insert(other, other[::PAGE].copy(), 0, 2, "", client="bob")
    assert tree.nearest(ids(0, 1, 2), "", "ann").continuation.tolist() == list(range(3, 3 + SHOWN_TOKENS))[
        :37
    ] + list(range(40, 67))
    assert tree.nearest(ids(0, 1, 2), "", "bob").hidden
    assert tree.nearest(ids(range(40)), "", "bob").continuation.tolist() == list(range(1000, 1004))


def reason(bench: CacheBench, prompt: np.ndarray, salt: str = "") -> tuple[str, int, int]:
    """Return (reason, resumed, depth) of a prompt that nobody sends."""
    found = dry_run(bench.cache, prompt, salt, "", bench.step + 1)
    assert found.resumed == bench.cache.match(prompt, salt, bench.step + 1).resumable
    return found.reason, found.resumed, found.depth


def test_the_reason_is_what_the_cache_did() -> None:
    bench = CacheBench.make(slabs=33)
    prompt = ids(range(17))
    assert reason(bench, prompt) == ("nothing_cached", 0, 0)
    bench.serve(prompt)
    assert reason(bench, prompt) == ("resumed_all", 16, 16)
    assert reason(bench, ids(range(4))) == ("too_short", 0, 4)
    assert reason(bench, ids(range(16), range(50, 59))) == ("new_text", 16, 16)
    assert reason(bench, ids(range(15), range(50, 59)))[0::2] == ("checkpoint_too_deep", 15)
    assert reason(bench, ids(50, range(16))) == ("parted", 0, 0)
    # Nothing says that another salt has the text: who guesses would learn it.
    assert bench.cache.match(prompt, "other", 99).cause == "salt_differs"
    assert reason(bench, prompt, "other") == ("nothing_cached", 0, 0)


def test_a_lost_checkpoint_is_told_from_one_that_was_never_there() -> None:
    bench = CacheBench.make(slabs=33)
    prompt = ids(range(17))
    bench.serve(prompt)
    node = bench.cache.tree.complete_checkpoints(prompt, "", 99)[0]
    bench.cache.tree.distrust(node)
    assert reason(bench, prompt)[0] == "quarantined"
    bench = CacheBench.make(slabs=33)
    bench.serve(prompt)
    for each in bench.cache.tree.complete_checkpoints(prompt, "", 99):
        bench.cache.reclaimer.evict_state(each)
    assert reason(bench, prompt)[:2] == ("checkpoint_evicted", 0)
    bench = CacheBench.make(slabs=33)
    bench.serve(prompt)
    bench.cache.flush()
    assert reason(bench, prompt)[0] == "flushed"
    flush_and_sweep(bench.cache)
    bench.cache.tree.insert(ids(range(100, 116)), ids(*range(4)), 0, 1, "")
    assert reason(bench, ids(range(100, 117)))[:2] == ("no_checkpoint", 0)


def test_a_prompt_whose_text_is_being_computed_says_so_and_a_cache_that_is_off_too() -> None:
    bench = CacheBench.make(slabs=33)
    prompt = ids(range(17))
    assert bench.admit(prompt) is not None
    assert reason(bench, prompt)[0] == "being_computed"
    assert reason(CacheBench.make(prefix_caching=False), prompt)[0] == "caching_off"


def test_what_a_remembered_prompt_lost_with_its_pages_is_evicted_and_a_failed_transfer_says_so() -> None:
    bench = CacheBench.make(slabs=33)
    prompt = ids(range(17))
    match, nearest = bench.cache.match(prompt, "", 1), bench.cache.nearest(prompt, "", "")
    assert explain(nearest, match, "new", 17, PAGE, seen=16).reason == "pages_evicted"
    assert explain(nearest, match, "new", 17, PAGE, transfer_failed=True).reason == "transfer_failed"
    assert explain(nearest, match, "", 17, PAGE).reason == "pinning"
    assert explain(nearest, match, "prompt_logprobs", 17, PAGE).reason == "prompt_read_whole"
