"""The radix tree: match, split, insert, locks, eviction, tombstones, events."""

import numpy as np
import pytest

from cache_bench import ids
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import Node
from mamba_server.cache.tree import RadixTree
from prefix_of import prefix_of


def make(policy: str = "LRU") -> RadixTree:
    return RadixTree(4, Eviction(policy))


def put(tree: RadixTree, tokens: np.ndarray, *, slot: int = 0, step: int = 1, salt: str = "") -> Node:
    """Insert `tokens`; page i of a key has the id of its first token, so copies can be told apart."""
    node, _, _ = tree.insert(tokens, tokens[::4].copy(), slot, step, salt)
    return node


def test_a_prompt_resumes_at_the_deepest_checkpoint_before_its_last_token() -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1)
    put(tree, ids(range(16)), slot=2)
    assert tree.match(ids(range(20)), "", 5).resumable == 16
    assert tree.match(ids(range(16)), "", 5).resumable == 8
    assert tree.match(ids(range(16)), "", 5).cause == "too_deep"
    assert tree.match(ids(range(8)), "", 5).resumable == 0


def test_pages_of_a_match_are_those_of_the_resumed_depth_alone() -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1)
    put(tree, ids(range(24)))
    match = tree.match(ids(range(30)), "", 5)
    assert (match.kv_depth, match.state_depth, match.resumable) == (24, 8, 8)
    assert match.pages.tolist() == [0, 4]
    assert match.cause == "no_state"


def test_a_state_never_advances_past_pages_that_are_missing() -> None:
    tree = make()
    put(tree, ids(range(16)), slot=2)
    match = tree.match(ids(range(12), 99, 98, 97, 96, 95), "", 5)
    assert match.kv_depth == 12
    assert match.resumable == 0


def test_a_checkpoint_of_this_step_is_for_later_steps() -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1, step=5)
    assert tree.match(ids(range(12)), "", 5).resumable == 0
    assert tree.match(ids(range(12)), "", 5).cause == "in_flight"
    assert tree.match(ids(range(12)), "", 6).resumable == 8


@pytest.mark.parametrize(
    ("prompt", "salt", "cause"),
    [
        (ids(range(50, 60)), "", "new"),
        (ids(range(12)), "other", "salt_differs"),
        (ids(range(3)), "", ""),
        (ids(range(8)), "", "too_deep"),
    ],
)
def test_a_miss_says_why(prompt: np.ndarray, salt: str, cause: str) -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1)
    assert tree.match(prompt, salt, 5).cause == cause


def test_a_miss_after_an_eviction_says_evicted() -> None:
    tree = make()
    node = put(tree, ids(range(8)), slot=1)
    tree.drop_state(node)
    assert tree.match(ids(range(12)), "", 5).cause == "evicted"
    put(tree, ids(range(8)), slot=2)
    assert tree.match(ids(range(12)), "", 5).cause == ""


def test_salts_share_nothing() -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1, salt="a")
    put(tree, ids(range(8)), slot=2, salt="b")
    assert tree.checkpoints == 2
    a, b = tree.match(ids(range(9)), "a", 5).node, tree.match(ids(range(9)), "b", 5).node
    assert a is not None
    assert b is not None
    assert (a.slot, b.slot) == (1, 2)


def test_the_parent_of_a_split_has_no_state_and_the_same_page_locks() -> None:
    tree = make()
    deep = put(tree, ids(range(16)), slot=1)
    tree.lock(deep, state=True)
    put(tree, ids(range(8), 90, 91, 92, 93), slot=2)
    upper = deep.parent
    assert upper is not None
    assert (upper.depth, upper.slot, upper.kv_lock, upper.state_lock) == (8, 0, 1, 0)
    assert (deep.depth, deep.slot, deep.kv_lock, deep.state_lock) == (16, 1, 1, 1)
    assert tree.locked_pages == 4
    assert prefix_of(deep).tolist() == list(range(16))
    tree.unlock_state(deep)
    tree.unlock(deep)
    assert tree.locked_pages == tree.locked_states == 0


def test_a_prefix_that_ends_inside_an_edge_gets_the_checkpoint_at_its_own_end() -> None:
    tree = make()
    put(tree, ids(range(16)), slot=1)
    node, had, taken = tree.insert(ids(range(8)), ids(0, 4), 2, 1, "")
    assert (node.depth, had, taken) == (8, 8, True)
    assert tree.nodes == 2


def test_a_duplicate_stays_with_the_caller() -> None:
    tree = make()
    put(tree, ids(range(8)), slot=1)
    node, had, taken = tree.insert(ids(range(8)), ids(70, 71), 2, 2, "")
    assert (had, taken, node.slot) == (8, False, 1)
    assert node.pages.tolist() == [0, 4]
    assert tree.pages == 2


def test_a_key_off_the_page_grid_is_refused() -> None:
    tree = make()
    for tokens, pages in ((ids(range(7)), ids(0, 4)), (ids(range(8)), ids(0)), (ids(), ids())):
        with pytest.raises(LedgerViolation, match="P5"):
            tree.insert(tokens, pages, 1, 1, "")


def test_locks_balance_or_are_refused() -> None:
    tree = make()
    node = put(tree, ids(range(8)), slot=1)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.unlock(node)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.unlock_state(node)
    tree.lock(node, state=True)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.unlock(node)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.drop_state(node)
    tree.unlock_state(node)
    tree.unlock(node)
    assert tree.evictable_slots == 1
    assert tree.evictable_pages == 2


def test_a_node_in_use_is_not_removed() -> None:
    tree = make()
    leaf = put(tree, ids(range(8)), slot=1)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.remove_leaf(leaf)
    tree.drop_state(leaf)
    child = put(tree, ids(range(12)))
    with pytest.raises(LedgerViolation, match="W4"):
        tree.remove_leaf(leaf)
    tree.lock(child, state=False)
    with pytest.raises(LedgerViolation, match="W4"):
        tree.remove_leaf(child)


def test_a_tombstone_keeps_its_pages_and_still_shows_the_branch() -> None:
    tree = make()
    node = put(tree, ids(range(8)), slot=1)
    assert tree.drop_state(node) == 1
    assert tree.checkpoints == 0
    assert tree.match(ids(range(12)), "", 5).kv_depth == 8
    assert tree.remove_leaf(node).tolist() == [0, 4]
    assert (tree.nodes, tree.pages, tree.roots) == (0, 0, {})


def test_a_checkpoint_that_was_dropped_is_no_victim_while_its_pages_are_in_use() -> None:
    tree = make()
    node = put(tree, ids(range(8)), slot=1)
    tree.lock(node, state=False)
    tree.drop_state(node)
    assert tree.eviction.pop_checkpoint() is None
    assert tree.eviction.pop_bare_node() is None
    tree.unlock(node)
    assert tree.eviction.pop_bare_node() is node


class Listener:
    """Remembers the texts of the checkpoints it was told of."""

    def __init__(self, tree: RadixTree) -> None:
        self.tree = tree
        self.known: set[tuple[str, bytes]] = set()

    def gained(self, node: Node) -> None:
        key = (node.salt, prefix_of(node).tobytes())
        assert key not in self.known
        self.known.add(key)

    def lost(self, node: Node) -> None:
        self.known.remove((node.salt, prefix_of(node).tobytes()))

    def pages_gained(self, node: Node) -> None:
        """Ignore pages: these tests are about checkpoints alone."""

    def pages_lost(self, node: Node) -> None:
        """Ignore pages: these tests are about checkpoints alone."""


def test_who_listens_knows_the_checkpoints_that_there_are() -> None:
    tree = make()
    tree.listener = listener = Listener(tree)
    a = put(tree, ids(range(16)), slot=1)
    put(tree, ids(range(8)), slot=2)
    put(tree, ids(range(8), 1, 2, 3, 4), slot=3, salt="x")
    tree.drop_state(a)
    there = {(each.salt, prefix_of(each).tobytes()) for each in tree.walk() if each.slot}
    assert listener.known == there
    assert len(there) == 2


def test_a_root_with_nothing_below_it_is_forgotten() -> None:
    tree = make()
    node = put(tree, ids(range(4)), salt="once")
    tree.lock(node, state=False)
    tree.unlock(node)
    tree.remove_leaf(node)
    assert tree.roots == {}
