"""A node of the tree: its path, the checkpoint above it, and how much of two keys is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_bench import ids
from mamba_server.cache.node import Node

NO_PAGES = np.empty(0, np.int32)
few_tokens = st.lists(st.integers(0, 2), max_size=24)


def chain(*lengths: int) -> list[Node]:
    """Return the root and one node below the other, with keys of these lengths."""
    nodes = [Node(None, ids(), NO_PAGES, "salt")]
    for length in lengths:
        nodes.append(Node(nodes[-1], ids(range(length)), NO_PAGES, "salt"))
    return nodes


def test_the_depth_of_a_node_is_all_the_tokens_above_it_and_its_own() -> None:
    assert [node.depth for node in chain(4, 8, 4)] == [0, 4, 12, 16]


def test_a_path_goes_from_below_the_root_to_the_node_itself() -> None:
    root, first, second, third = chain(4, 4, 4)
    assert third.path() == [first, second, third]
    assert first.path() == [first]
    assert root.path() == []


def test_the_tokens_at_stake_reach_to_the_nearest_checkpoint_above_and_never_the_own() -> None:
    _, first, second, third = chain(4, 4, 4)
    assert third.exclusive_span()[0] == 12
    third.slot = 9
    assert third.exclusive_span()[0] == 12
    first.slot = 7
    assert third.exclusive_span()[0] == 8
    second.slot = 8
    assert third.exclusive_span()[0] == 4
    assert first.exclusive_span()[0] == 4


@given(few_tokens, few_tokens, few_tokens, st.integers(1, 5))
def test_shared_pages_are_the_whole_pages_before_the_first_difference(
    before: list[int], edge: list[int], text: list[int], page_size: int
) -> None:
    edge = (edge + [1] * page_size)[: max(1, len(edge) // page_size) * page_size]
    pages = np.zeros(len(edge) // page_size, np.int32)
    node = Node(None, ids(*edge), pages, "salt")
    same = 0
    while same < min(len(edge), len(text)) and edge[same] == text[same]:
        same += 1
    whole = np.array(before + text, np.int32)
    assert node.shared_pages(whole[len(before) :]) == same // page_size


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        (ids(range(8)), 2), (ids(range(12)), 2), (ids(range(7)), 1), (ids(), 0),
        (ids(99, range(1, 8)), 0), (ids(range(7), 99), 1),
    ],
)  # fmt: skip
def test_a_page_that_differs_in_one_token_is_not_shared(text: np.ndarray, pages: int) -> None:
    node = Node(None, ids(range(8)), np.zeros(2, np.int32), "salt")
    assert node.shared_pages(text) == pages
