"""Sampling in plain torch on any device. The engine's sampler calls its parts on the rows that need them."""

import torch

from mamba_kernels.sample.noise import gumbel, scatter_tokens
from mamba_kernels.sample.parameters import PenaltyCounts, SampleParameters, TokenChoice

SORTED_VOCAB = 1 << 14
"""Largest vocabulary that is sorted for `top_p`; for larger ones two histograms are faster."""

BLOCK_LOGITS = 1 << 22
"""Bound on the logits that are processed together, and so on their copies; one row may exceed it."""
_ONE_BITS = 0x3F800000
"""float32 1.0 as an integer: non-negative floats have the order of their bits."""


def sample(
    logits: torch.Tensor, parameters: SampleParameters, counts: PenaltyCounts, positions: torch.Tensor
) -> TokenChoice:
    """Choose one token per row; a row's result depends on its own logits, parameters and position alone.

    `logits` are [L, vocabulary] float32, overwritten; `positions` are the positions of the tokens to choose,
    [L] int32. Penalties come first, then temperature, `min_p`, `top_k` and `top_p` in that order; the noise
    is a function of (words, position, token). The chosen tokens are counted.
    """
    size = max(1, BLOCK_LOGITS // logits.shape[1])
    if len(logits) > size:
        blocks = [slice(first, first + size) for first in range(0, len(logits), size)]
        parts = [sample(logits[b], parameters.of_rows(b), counts, positions[b]) for b in blocks]
        ids, finite = (torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "finite"))
        return TokenChoice(ids, finite)
    p, vocabulary = parameters, logits.shape[1]
    finite = is_finite(logits)
    users = p.counts_row >= 0
    table = p.counts_row.clamp(min=0).long()
    if len(counts.output):
        strengths = (penalty[:, None] for penalty in (p.repetition, p.presence, p.frequency))
        changed = penalize(logits, counts.output[table], counts.prompt[table], *strengths)
        logits.copy_(torch.where(users[:, None], changed, logits))
    best = logits.argmax(-1)
    random = p.temperature > 0
    logits.sub_(logits.amax(-1, keepdim=True)).div_(torch.where(random, p.temperature, 1.0)[:, None])
    column = slice(None), None
    logits.masked_fill_((p.min_p > 0)[column] & ~min_p(logits, p.min_p[column]), -torch.inf)
    ranked = top_k(logits, p.top_k[column].clamp(1, vocabulary), vocabulary)
    logits.masked_fill_((p.top_k > 0)[column] & ~ranked, -torch.inf)
    logits.masked_fill_((p.top_p < 1)[column] & ~top_p(logits, p.top_p[column]), -torch.inf)
    noise = gumbel(p.words, positions, scatter_tokens(vocabulary, logits.device))
    ids = torch.where(random, logits.add_(noise).argmax(-1), best)
    if len(counts.output):
        counts.output.index_put_((table, ids), users.to(torch.int32), accumulate=True)
    return TokenChoice(ids, finite)


def is_finite(rows: torch.Tensor) -> torch.Tensor:
    """Return whether each row has neither NaN nor positive infinity, [r] bool.

    NaN wins every comparison of `amax`, and a NaN in a state reaches the hidden state of every later token.
    """
    return rows.amax(-1).isfinite()


def penalize(
    logits: torch.Tensor,
    counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Apply the penalties and return new logits.

    `logits`, `counts` and `in_prompt` are [r, vocabulary]; `repetition`, `presence` and `frequency` are [r,
    1]. The repetition penalty (Keskar et al. 2019) counts the prompt too; presence and frequency count
    generated tokens only.
    """
    seen = counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    changed = torch.where(seen | in_prompt, scaled, logits)
    changed -= frequency * counts
    changed -= presence * seen
    return changed


def min_p(logits: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Select tokens with at least `share` of the best token's probability; the best logit must be 0."""
    return logits >= share.log()


def top_k(logits: torch.Tensor, k: torch.Tensor, most: int) -> torch.Tensor:
    """Select the k best tokens, and those that are equal to the k-th."""
    best = logits.topk(most).values
    return logits >= best.gather(1, k.to(torch.int64) - 1)


def top_p(logits: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Select the most likely tokens whose probabilities first reach `mass`, and those equal to the last."""
    if logits.shape[1] <= SORTED_VOCAB:
        probabilities = logits.softmax(-1)
        ranked = probabilities.sort(-1, descending=True).values
        before_mass = ranked.cumsum(-1, dtype=torch.float64) < mass
        last = before_mass.sum(-1, keepdim=True).clamp_(max=logits.shape[1] - 1)
        return probabilities >= ranked.gather(1, last)
    parts = zip(logits.split(1), mass.split(1), strict=True)  # one row's arrays stay in the cache
    return torch.cat([_nucleus(row, share) for row, share in parts])


def _nucleus(logits: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Compute `top_p` without a sort, which is expensive for a large vocabulary.

    Non-negative floats have the order of their bits: two histograms of probability mass, one over the upper
    and one over the lower half of the bits, find the threshold exactly.
    """
    probabilities = logits.softmax(-1)
    wide = probabilities.double()
    # NaN is clamped to a valid bucket, so that the other rows can still be sampled.
    bits = probabilities.view(torch.int32).clamp(0, _ONE_BITS)
    upper, lower = (bits >> 16).long(), (bits & 0xFFFF).long()
    zero = torch.zeros_like(mass, dtype=torch.float64)
    bucket, beyond = _lowest_bucket(upper, wide, zero, mass, (_ONE_BITS >> 16) + 1)
    inside = wide.masked_fill_(upper != bucket, 0)
    place, _ = _lowest_bucket(lower, inside, beyond, mass, 1 << 16)
    return bits >= (bucket << 16) + place


def _lowest_bucket(
    index: torch.Tensor, weight: torch.Tensor, beyond: torch.Tensor, mass: torch.Tensor, buckets: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the highest bucket at which the weights from above, plus `beyond`, reach `mass`.

    The second result is the weight above that bucket. `index` and `weight` are [r, vocab]; `beyond` and
    `mass` are [r, 1]. Both results are [r, 1].
    """
    totals = weight.new_zeros(len(index), buckets + 1).scatter_add_(1, index, weight)
    tail = totals.flip(-1).cumsum(-1).flip(-1).add_(beyond)  # tail[b]: weight of buckets >= b
    lowest = (tail[:, :-1] >= mass).sum(-1, keepdim=True).sub_(1).clamp_(min=0)
    return lowest, tail.gather(1, lowest + 1)
