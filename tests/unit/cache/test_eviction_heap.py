"""Victims come in order whatever was put in, moved and taken out before, and none costs more for it."""

from hypothesis import given
from hypothesis import strategies as st

from cache_bench import ids
from mamba_server.cache.eviction import Eviction, EvictionHeap
from mamba_server.cache.node import Node
from operations import operations


def nodes(count: int) -> list[Node]:
    root = Node(None, ids(), ids(), "")
    return [Node(root, ids(range(4 * number, 4 * number + 4)), ids([number]), "") for number in range(count)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15), st.integers(0, 4)), max_size=80))
def test_any_putting_moving_and_taking_out_keeps_the_order(events: list[tuple[int, int, int]]) -> None:
    all_nodes, victims = nodes(16), EvictionHeap()
    model: dict[int, tuple[float, int]] = {}
    for turn, (kind, index, priority) in enumerate(events):
        node = all_nodes[index]
        if kind < 2:
            node.priority = float(priority)
            victims.put(node)
            model[index] = (float(priority), turn)
        elif kind == 2 and node.victims is victims:
            victims.remove(node)
            del model[index]
        elif kind == 3:
            popped = victims.pop()
            assert (popped is None) == (not model)
            if popped is not None:
                first = min(model, key=lambda each: model[each])
                assert popped is all_nodes[first]
                del model[first]
        assert len(victims) == len(model)
    left = []
    while (node_left := victims.pop()) is not None:
        left.append(all_nodes.index(node_left))
    assert left == sorted(model, key=lambda each: model[each])


def test_a_node_put_among_others_leaves_those_it_was_among() -> None:
    (node,), one, two = nodes(1), EvictionHeap(), EvictionHeap()
    one.put(node)
    two.put(node)
    assert (len(one), len(two), one.pop(), two.pop()) == (0, 1, None, node)


def test_no_single_use_or_eviction_pays_for_all_hits_before_it() -> None:
    eviction, all_nodes = Eviction("LRU"), nodes(2000)
    for slot, node in enumerate(all_nodes, 1):
        node.slot = slot
        eviction.touch(node)
    # The oldest is hit no more: what is out of date would pile up behind it.
    uses = [operations(lambda node=node: eviction.touch(node)) for _ in range(2) for node in all_nodes[1:]]
    assert max(uses) < 30
    evictions = [operations(eviction.pop_checkpoint) for _ in range(2)]
    assert max(evictions) < 30
