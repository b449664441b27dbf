"""Random numbers of sampling as a pure function of (seed, position, token id), without generator or state.

A row's noise is therefore the same in every batch, after a preemption and on every device. Called by the
sampler only.
"""

import torch

_GOLDEN = -1640531527  # 2**32 / golden ratio, odd, as int32
BLOCK_ELEMENTS = 1 << 17
"""Noise values computed at once: half a megabyte, so that the passes of the hash run in the cache."""


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Apply the finalizer of MurmurHash3 (public domain, A. Appleby) in place to int32: a bijection."""
    for shift, low_bits, factor in ((16, 0xFFFF, -2048144789), (13, 0x7FFFF, -1028477387), (16, 0xFFFF, 1)):
        x ^= (x >> shift).bitwise_and_(low_bits)
        if factor != 1:
            x *= factor  # 0x85EBCA6B, 0xC2B2AE35
    return x


def seed_words(seed: int) -> tuple[int, int]:
    """Mix a 64-bit seed into two int32 words (splitmix64), so that seeds 1 and 2 are unrelated."""
    z = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    z ^= z >> 31
    low, high = z & 0xFFFFFFFF, z >> 32
    return low - (1 << 32 if low >> 31 else 0), high - (1 << 32 if high >> 31 else 0)


def scatter_tokens(vocab_size: int, device: torch.device) -> torch.Tensor:
    """Mix every token id once, [vocab] int32, so that keys of neighbouring ids are unrelated."""
    return _mix(torch.arange(vocab_size, dtype=torch.int32, device=device).mul_(_GOLDEN))


def gumbel(words: torch.Tensor, positions: torch.Tensor, scattered: torch.Tensor) -> torch.Tensor:
    """Compute standard Gumbel noise [R, vocab], float32, finite.

    `words` are [R, 2] int32 from `seed_words`; `positions` are [R] int32; `scattered` is [vocab] from
    `scatter_tokens`. argmax(logits + gumbel) is a sample of softmax(logits) (Gumbel-max).
    """
    first = _mix(words[:, 0] ^ (positions * _GOLDEN))
    second = _mix(words[:, 1] + first)
    noise = torch.empty(len(words), len(scattered), dtype=torch.float32, device=words.device)
    rows = max(1, BLOCK_ELEMENTS // len(scattered))
    for begin in range(0, len(words), rows):
        part = slice(begin, begin + rows)
        bits = _mix((scattered ^ first[part, None]).add_(second[part, None]))
        # 23 bits plus one half: exactly representable and strictly between 0 and 1.
        uniform = noise[part].copy_((bits >> 9).bitwise_and_(0x7FFFFF)).add_(0.5).mul_(2.0**-23)
        uniform.log_().neg_().log_().neg_()
    return noise
