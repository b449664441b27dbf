"""Tree changes for the prefix index: complete, without duplicates, and small enough to be free."""

from __future__ import annotations

import random

import numpy as np

from cache_bench import ids
from engine_trial import EngineTrial, TrialSetup
from mamba_prefix.page_chain import PageChain
from mamba_prefix.prefix_index import entries_of, hashes_of
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import Node
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.stepping.tree_changes import TreeChanges


def make() -> tuple[RadixTree, TreeChanges]:
    tree = RadixTree(4, Eviction("LRU"), "model")
    changes = TreeChanges(tree.page_size, tree.fingerprint)
    tree.listener = changes
    return tree, changes


def put(tree: RadixTree, text: np.ndarray, slot: int, salt: str = "") -> Node:
    pages = np.arange(1, len(text) // 4 + 1, dtype=np.int32)
    return tree.insert(text, pages, slot, 1, salt)[0]


def hash_of(text: np.ndarray, salt: str = "") -> int:
    return int(PageChain(4, "model").hashes(text, salt)[-1])


def test_a_checkpoint_is_told_by_the_hash_of_its_text_whatever_the_shape_of_the_tree() -> None:
    tree, changes = make()
    long, other = ids(range(32)), ids(range(8), range(50, 58))
    put(tree, long, 1)
    put(tree, other, 2)  # splits the first edge
    put(tree, long[:8], 3)
    put(tree, long, 4, salt="x")
    said = changes.take()
    assert said is not None
    told = {int(each["hash"]): int(each["depth"]) for each in entries_of(said.gained)}
    assert told == {
        hash_of(long): 32, hash_of(other): 16, hash_of(long[:8]): 8, hash_of(long, "x"): 32,
    }  # fmt: skip
    assert changes.take() is None


def test_what_comes_and_goes_between_two_messages_is_not_told() -> None:
    tree, changes = make()
    kept = put(tree, ids(range(8)), 1)
    changes.take()
    gone = put(tree, ids(range(40, 48)), 2)
    tree.drop_state(gone)
    tree.remove_leaf(gone)
    tree.drop_state(kept)
    put(tree, ids(range(8)), 3)
    assert not changes.pending
    tree.drop_state(kept)
    said = changes.take()
    assert said is not None
    assert hashes_of(said.lost).tolist() == [hash_of(ids(range(8)))]
    assert said.gained == b""
    assert (said.pages_gained, said.pages_lost) == (b"", b"")


def test_pages_are_told_at_the_rungs_of_their_prompt_with_or_without_a_checkpoint() -> None:
    tree, changes = make()
    long, other = ids(range(80)), ids(range(72), range(200, 208))
    end = put(tree, long, 1)
    put(tree, other, 0)  # splits the first edge: that changes no page
    said = changes.take()
    assert said is not None
    chain = PageChain(4, "model")
    rungs = [*range(16), 17, 19]  # of 20 pages those with the numbers 1 to 16, 18, 20
    shared = chain.hashes(long, "")[rungs].tolist()
    assert set(hashes_of(said.pages_gained).tolist()) == {*shared, int(chain.hashes(other, "")[19])}
    tree.drop_state(end)
    tree.remove_leaf(end)
    said = changes.take()
    assert said is not None
    assert hashes_of(said.pages_lost).tolist() == [int(chain.hashes(long, "")[19])]
    assert said.pages_gained == b""


def test_a_flush_is_one_word_and_what_it_spares() -> None:
    engine = EngineTrial(TrialSetup(slabs=60), random.Random(0))
    for start in (1, 40, 80):
        engine.add(list(range(start, start + 30)), 3)
    while not engine.core.idle:
        engine.step()
    engine.add(list(range(1, 35)), 3)
    engine.step()
    [reading] = engine.cache.allocations.values()
    read = reading.match_node
    assert read is not None
    assert engine.cache.tree.checkpoints > 1
    engine.hear()
    engine.core.flush_cache()
    said = engine.hear()
    assert said is not None
    assert (said.cleared, said.epoch, said.lost) == (True, 2, b"")
    assert entries_of(said.gained)["depth"].tolist() == [read.depth]
    engine.close()


def test_a_change_of_strategy_loses_nothing_and_begins_no_epoch() -> None:
    engine = EngineTrial(TrialSetup(slabs=60, strategy="NoBuffer"), random.Random(0))
    engine.add(list(range(1, 30)), 5)
    while not engine.core.idle:
        engine.step()
    engine.hear()
    assert engine.core.change_strategy("ExtraBuffer") is None
    assert engine.hear() is None
    assert engine.core.tree_changes.epoch == 1
    engine.close()


def test_an_edge_is_summed_once_however_many_checkpoints_come_and_go_below_it() -> None:
    tree, changes = make()
    put(tree, ids(range(40)), 1)
    changes.take()
    summed = []
    terms = changes._chain.terms
    changes._chain.terms = lambda text, first: (  # type: ignore[method-assign]
        summed.append(len(text)) or terms(text, first)
    )
    for turn in range(5):
        node = put(tree, ids(range(40), range(100 + 4 * turn, 104 + 4 * turn)), 2)
        tree.drop_state(node)
        tree.remove_leaf(node)
    # Its checkpoint and its pages together, and not again as they go.
    assert summed == [4] * 5


def test_pages_that_were_parted_are_told_lost_by_the_hashes_that_they_came_under() -> None:
    tree, changes = make()
    long, other = ids(range(80)), ids(range(48), range(200, 208))
    end = put(tree, long, 1)
    changes.take()
    put(tree, other, 0)  # splits the edge
    changes.take()
    tree.drop_state(end)
    tree.remove_leaf(end)
    lost = changes.take()
    assert lost is not None
    # Of the rungs of 20 pages those below the twelve that are left.
    chain = PageChain(4, "model").hashes(long, "")
    assert set(hashes_of(lost.pages_lost).tolist()) == set(chain[[12, 13, 14, 15, 17, 19]].tolist())
