"""The messages that tell what a step produced; scores of long prompts come in pieces. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from mamba_server.wire import Outputs, SequenceDelta

MOST_ENTRIES = 8192
"""Log-probabilities in one message: reading one takes some 2 us, during which nothing else is answered."""


def output_messages(deltas: Sequence[SequenceDelta]) -> Iterator[Outputs]:
    """The messages of one step, in the order in which they have to be sent."""
    kept = []
    for delta in deltas:
        scores = delta.prompt_logprobs or []
        size = 1 + max((len(each.top_ids) for each in scores[-1:] if each is not None), default=0)
        tokens = max(MOST_ENTRIES // size, 1)
        if len(scores) <= tokens:
            kept.append(delta)
            continue
        for start in range(0, len(scores), tokens):
            piece = scores[start : start + tokens]
            yield Outputs([SequenceDelta(delta.request_id, delta.index, [], prompt_logprobs=piece)])
        kept.append(_without_scores(delta))
    if kept:
        yield Outputs(kept)


def _without_scores(delta: SequenceDelta) -> SequenceDelta:
    return msgspec.structs.replace(delta, prompt_logprobs=None)
