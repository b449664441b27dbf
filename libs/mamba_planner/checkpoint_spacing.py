"""How far apart checkpoints lie while a sequence decodes: pure arithmetic.

The engine places checkpoints by it, the planner estimates by it what the next turn must recompute.
"""


def decode_spacing(outputs: int, page_size: int, track_interval: int) -> int:
    """Tokens between the checkpoints of a sequence that has generated `outputs` tokens.

    A page at first, doubled whenever the output has, at most `track_interval`: of a short answer too, most
    is resumed by the next turn (at most a quarter is lost), for four more writes of the state a doubling.
    """
    doublings = max(0, (outputs // (4 * page_size)).bit_length() - 1)
    return min(page_size << doublings, track_interval)
