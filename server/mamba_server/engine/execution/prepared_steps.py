"""Steps without sequences that launch every kernel in every form that a step with prompts can have.

Pure. The runner computes them at the start, so that nothing is compiled while serving.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mamba_kernels.ssd_prefill.segments import LEAST_CHUNKS
from mamba_server.model.trial_batch import TrialPiece

DECODE_COUNTS = 2
"""Least number of variants of a step with prompts: behind no decode, behind one, and so on."""


@dataclass(frozen=True, slots=True)
class PreparedSteps:
    """Lists steps for which different kernels are compiled, so that an engine can compile them in advance.

    `chunk` is the number of tokens of a chunk.
    """

    chunk: int
    longest_piece: int
    """Most tokens of one prompt in a step."""
    step_tokens: int
    """Most tokens of a step."""

    def kinds(
        self, token_counts: Iterable[int], alignments: int
    ) -> Iterator[tuple[list[int], list[TrialPiece]]]:
        """Yield the steps: the context of each decode, and the pieces of prompts.

        `token_counts` are numbers of tokens at which some kernel takes another form. The address of a row
        modulo 16 bytes is the same again `alignments` rows later.
        """
        kinds = [[TrialPiece(self.chunk + 1, self.chunk + 1), TrialPiece(1, 1)], [TrialPiece(1, 1)]]
        # The shortest piece that a scan cuts into segments, if a step can have one.
        segmented = 2 * LEAST_CHUNKS * self.chunk
        if segmented <= self.longest_piece:
            kinds.append([TrialPiece(segmented, segmented)])
        for pieces in kinds:
            # Behind another number of decodes, the rows of a piece may not begin at a multiple of 16 bytes,
            # for which a kernel is compiled separately.
            for decodes in range(max(DECODE_COUNTS, alignments)):
                yield [1] * decodes, pieces
        for tokens in token_counts:
            if tokens <= self.step_tokens:
                yield [], list(self._pieces(tokens))

    def _pieces(self, tokens: int) -> Iterator[TrialPiece]:
        longest = max(1, self.longest_piece)
        for first in range(0, tokens, longest):
            length = min(longest, tokens - first)
            yield TrialPiece(length, length)
