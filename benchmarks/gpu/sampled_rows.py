"""The choice of tokens for rows of logits, timed."""

import torch
from benchmarks.gpu.case import Numbers
from benchmarks.gpu.timing import seconds_of

from mamba_kernels.dispatch.operators import triton_operators
from mamba_kernels.sample import PenaltyCounts, SampleParameters
from mamba_kernels.sample.parameters import packed_size


def sample_seconds(rows: int, top_p: float, vocabulary: int, device: torch.device) -> Numbers:
    """Time one choice for all rows, at temperature 1, with penalties off."""
    sample = triton_operators().sample
    assert sample is not None
    parameters = SampleParameters.packed(
        torch.zeros(packed_size(rows), dtype=torch.int32, device=device), rows
    )
    for ones in (parameters.temperature, parameters.repetition):
        ones.fill_(1.0)
    parameters.top_p.fill_(top_p)
    parameters.counts_row.fill_(-1)
    parameters.words.copy_(torch.arange(2 * rows, device=device).view(rows, 2))
    counts = PenaltyCounts(
        torch.zeros(1, vocabulary, dtype=torch.int32, device=device),
        torch.zeros(1, vocabulary, dtype=torch.bool, device=device),
    )
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    # Several sets, so that logits come from memory; about as peaked as a model's.
    logits = [torch.randn(rows, vocabulary, device=device) * 4 for _ in range(2)]
    with torch.inference_mode():
        calls = [lambda each=each: sample(each, parameters, counts, positions) for each in logits]
        numbers: Numbers = dict(seconds_of(calls, device))
    moved = logits[0].numel() * logits[0].element_size()
    return {**numbers, "bytes_per_second": moved / float(numbers["seconds"])}
