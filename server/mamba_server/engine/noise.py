"""Random numbers of sampling as a pure function of (seed, position, token id): no generator, no state.

A row's noise is therefore the same in every batch, after a preemption and on every device. Called by the
sampler only.
"""

import torch

_GOLDEN = -1640531527  # 2**32 / golden ratio, odd, as int32


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finalizer of MurmurHash3 (public domain, A. Appleby), in place on int32: a bijection."""
    x ^= (x >> 16) & 0xFFFF
    x *= -2048144789  # 0x85EBCA6B
    x ^= (x >> 13) & 0x7FFFF
    x *= -1028477387  # 0xC2B2AE35
    x ^= (x >> 16) & 0xFFFF
    return x


def seed_words(seed: int) -> tuple[int, int]:
    """Two int32 words of a 64-bit seed, well mixed (splitmix64), so that seeds 1 and 2 share nothing."""
    z = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    z ^= z >> 31
    low, high = z & 0xFFFFFFFF, z >> 32
    return low - (1 << 32 if low >> 31 else 0), high - (1 << 32 if high >> 31 else 0)


def gumbel(words: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise [R, K], float32, finite.

    words: [R, 2] int32 from `seed_words`; positions: [R] int32; tokens: [R, K] or [1, K] int32 token ids.
    argmax(logits + gumbel) is a sample of softmax(logits) (Gumbel-max).
    """
    first = _mix(words[:, 0] ^ (positions * _GOLDEN))
    second = _mix(words[:, 1] + first)
    bits = _mix((tokens * _GOLDEN) ^ first[:, None])
    bits = _mix(bits.add_(second[:, None]))
    # 23 bits and a half: exactly representable and strictly between 0 and 1.
    uniform = ((bits >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()
