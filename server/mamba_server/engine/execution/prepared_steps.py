"""Steps of nobody that launch every kernel in every form that a step with prompts can have.

Pure. The runner computes them at the start, so that nothing is compiled while serving.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mamba_kernels.ssd_prefill.segments import LEAST_CHUNKS
from mamba_server.model.trial_batch import TrialPiece

DECODES = 2
"""Numbers of decodes, from none on, that any model's prompts are computed behind."""


@dataclass(frozen=True, slots=True)
class PreparedSteps:
    """Bounds of an engine's steps, and steps within them of every kind. `chunk`: tokens of a chunk."""

    chunk: int
    longest_piece: int
    """Tokens of one prompt in a step at most."""
    step_tokens: int
    """Tokens of a step at most."""

    def kinds(
        self, token_counts: Iterable[int], alignments: int
    ) -> Iterator[tuple[list[int], list[TrialPiece]]]:
        """List the steps: contexts of the decodes, and pieces.

        token_counts: numbers of tokens at which some kernel takes another form; alignments: after how many
        rows a row lies again at the same place between multiples of 16 bytes.
        """
        kinds = [[TrialPiece(self.chunk + 1, self.chunk + 1), TrialPiece(1, 1)], [TrialPiece(1, 1)]]
        # The shortest piece that a scan cuts into segments, if a step can have one.
        segmented = 2 * LEAST_CHUNKS * self.chunk
        if segmented <= self.longest_piece:
            kinds.append([TrialPiece(segmented, segmented)])
        for pieces in kinds:
            # Behind another number of decodes the rows of a piece may lie at no multiple of 16 bytes, for
            # which a kernel is compiled once more.
            for decodes in range(max(DECODES, alignments)):
                yield [1] * decodes, pieces
        for tokens in token_counts:
            if tokens <= self.step_tokens:
                yield [], list(self._pieces(tokens))

    def _pieces(self, tokens: int) -> Iterator[TrialPiece]:
        longest = max(1, self.longest_piece)
        for first in range(0, tokens, longest):
            length = min(longest, tokens - first)
            yield TrialPiece(length, length)
