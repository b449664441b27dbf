"""Memory sizes of GPUs on the market, and the next size above and below a given one. Pure.

Source: the total that NVIDIA's driver reports for the named card, in MiB, which feature discovery writes into
the label nvidia.com/gpu.memory.
"""

MIB = 1 << 20
MIB_OF = {
    "T4": 15_360,
    "A10": 23_028,
    "L4": 23_034,
    "RTX 5090": 32_607,
    "V100": 32_768,
    "A100 40GB": 40_960,
    "L40S": 46_068,
    "H100": 81_559,
    "A100 80GB": 81_920,
    "RTX PRO 6000": 97_887,
    "H200": 143_771,
    "B200": 183_359,
    "B300": 275_040,
}
"""MiB by card, ascending. The A40 has the same memory as the L40S."""
ONE_SIZE = 1.08
"""Ratio below which two numbers describe the same size. 48Gi and the number an L40S reports (ECC takes a
16th) are 1.067 apart, and a process sees one percent less than the driver. The nearest two sizes are 1.125
apart."""


def card_memory(name: str) -> int | None:
    """Return the bytes of a card by its name in any spelling, such as a100-80gb; None = unknown."""
    query = _plain(name)
    for card, mib in MIB_OF.items():
        # A name without a size means the card's largest.
        if query == _plain(card) or (query == _plain(card.split()[0]) and card == _largest(card.split()[0])):
            return mib * MIB
    return None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _largest(first_word: str) -> str | None:
    """Return the card with the most memory among the cards whose names begin with `first_word`.

    They are cards of one model with different amounts of memory. None = there are none.
    """
    cards = [card for card in MIB_OF if card.split()[0] == first_word and card.endswith("GB")]
    return max(cards, key=MIB_OF.__getitem__, default=None)


def _sizes() -> tuple[int, ...]:
    sizes: list[int] = []
    for mib in sorted(MIB_OF.values()):
        if not sizes or mib * MIB > sizes[-1] * ONE_SIZE:
            sizes.append(mib * MIB)
    return tuple(sizes)


SIZES = _sizes()
"""Sizes in bytes, ascending. Of several cards with the same size, the smallest reported number."""


def one_size_down(memory: int) -> int | None:
    """Return the bytes of the next smaller size than `memory` bytes; None = there is none."""
    return max((size for size in SIZES if size * ONE_SIZE < memory), default=None)


def sizes_up(memory: int) -> tuple[int, ...]:
    """Return the bytes of all sizes larger than `memory` bytes, ascending."""
    return tuple(size for size in SIZES if size > memory * ONE_SIZE)


def one_size_up(memory: int) -> int | None:
    """Return the bytes of the next larger size than `memory` bytes; None = there is none."""
    return min(sizes_up(memory), default=None)
