"""Memory that GPUs are sold with, and the next size above and below a given one. Pure.

Source: the total that NVIDIA's driver reports of the named card, in MiB, which is what feature discovery puts
into the label nvidia.com/gpu.memory. Where several cards are sold as one size, the smallest number is taken.
"""

MIB = 1 << 20
SIZES = tuple(
    mib * MIB
    for mib in (
        15_360,  # 16 GB: T4
        23_028,  # 24 GB: A10; the L4 has 23,034
        32_607,  # 32 GB: RTX 5090; the V100 has 32,768
        40_960,  # 40 GB: A100
        46_068,  # 48 GB: L40S, A40
        81_559,  # 80 GB: H100; the A100 has 81,920
        97_887,  # 96 GB: RTX PRO 6000
        143_771,  # 141 GB: H200
        183_359,  # 180 GB: B200
        275_040,  # 288 GB: B300
    )
)
"""Bytes, ascending."""
ONE_SIZE = 1.08
"""Numbers closer than this ratio are one size told in two ways: 48Gi and what an L40S reports (ECC takes a
16th) are 1.067 apart, and a process sees a hundredth less than the driver. The nearest two sizes are 1.125
apart."""


def one_size_down(memory: int) -> int | None:
    """Bytes of the next smaller size than `memory` bytes; None = there is none."""
    return max((size for size in SIZES if size * ONE_SIZE < memory), default=None)


def sizes_up(memory: int) -> tuple[int, ...]:
    """Bytes of all sizes larger than `memory` bytes, ascending."""
    return tuple(size for size in SIZES if size > memory * ONE_SIZE)


def one_size_up(memory: int) -> int | None:
    """Bytes of the next larger size than `memory` bytes; None = there is none."""
    return min(sizes_up(memory), default=None)
