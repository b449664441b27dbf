"""How many rows a decode step has on the device: one of a few numbers, so that each can be prepared."""

SMALL = (1, 2, 4)
GRAINS = ((64, 8), (256, 16), (512, 32))
"""Up to so many rows, in steps of so many: few rows of padding, and few steps to prepare."""
COARSEST = 64


def decode_buckets(most: int) -> tuple[int, ...]:
    """The numbers of rows for up to `most` sequences, ascending; `most` is the last."""
    sizes = [size for size in SMALL if size < most]
    size = 0
    while size < most:
        size += next((grain for end, grain in GRAINS if size < end), COARSEST)
        sizes.append(min(size, most))
    return tuple(sizes)
