"""The prefix that ends with a node of the radix tree."""

from __future__ import annotations

import numpy as np

from mamba_server.cache.node import Node, Tokens


def prefix_of(node: Node) -> Tokens:
    """Return all tokens from the root to the end of `node`."""
    return np.concatenate([each.token_ids for each in node.path()])
