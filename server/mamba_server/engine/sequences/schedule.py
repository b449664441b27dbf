"""Schedule of one step: the scheduler's decision, from which the step's arrays are built. Pure data."""

from dataclasses import dataclass

from mamba_server.cache import Checkpoint, Ints, Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.wire import PrefillTiming

MAX_BESIDE = 4
"""Most other requests with a sampled trace that the timing of a piece names as computed in the same step."""
_SAMPLED = "-01"


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Tokens [start, stop) of one sequence that a step computes.

    Their state is read from `slot_in` and written to `slot_out`. `final` says whether the piece ends the
    prompt, so that the step samples a token.
    """

    sequence: Sequence
    start: int
    stop: int
    slot_in: int
    slot_out: int
    checkpoints: list[Checkpoint]
    """Checkpoints that the step writes as it computes the piece."""
    final: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow the token that decode `index` computes; the step checks them.

    `lane` is the buffer that keeps their inputs. `masks` are [tokens + 1, words], the tokens that may come in
    place of the first token and behind each of them; None = the answer follows no rules.
    """

    index: int
    lane: int
    tokens: Tokens
    masks: Ints | None = None


@dataclass(frozen=True, slots=True)
class Absorption:
    """Accepted drafts of decode `index` whose inputs go from `lane` into the live slot before the step.

    `token`: the last token of the sequence, which the row computes next.
    """

    index: int
    lane: int
    count: int
    token: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Decodes and prefill pieces of one step.

    Row `decode_rows[i]` also writes its state to slot `decode_track[i]` (0 = none). `decode_ring`: plan of
    `RingRows`; None = every row writes its state.
    """

    step: int
    """Number of the step."""
    decode_rows: Ints
    decode_track: Ints
    decodes: list[Sequence]
    """Sequences that decode, in the order of `decode_rows`."""
    pieces: list[PrefillPiece]
    drafts: tuple[Draft, ...] = ()
    """Drafts of these sequences, which the step checks."""
    absorbed: tuple[Absorption, ...] = ()
    """Accepted drafts that the step computes into states before."""
    decode_ring: Ints | None = None

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.pieces

    @property
    def members(self) -> list[Sequence]:
        """Sequences that take part: first the decodes, then the sequences of the pieces."""
        return [*self.decodes, *(piece.sequence for piece in self.pieces)]

    @property
    def sampling(self) -> list[Sequence]:
        """Sequences that sample a token, in the order of the step's results."""
        return [*self.decodes, *(piece.sequence for piece in self.pieces if piece.final)]

    @property
    def draft_rows(self) -> list[tuple[int, Draft]]:
        """Rows of the step behind the rows of the decodes: the index of a drafted token, and its draft.

        First come the first tokens of all drafts, then the second tokens, and so on. The longest draft comes
        first, so the drafts with a further token are always the first ones.
        """
        if len(self.drafts) == 1:
            return [(turn, self.drafts[0]) for turn in range(len(self.drafts[0].tokens))]
        drafts = sorted(self.drafts, key=lambda draft: -len(draft.tokens))
        most = len(drafts[0].tokens) if drafts else 0
        return [(turn, each) for turn in range(most) for each in drafts if turn < len(each.tokens)]

    @property
    def tokens(self) -> int:
        return self.decode_tokens + sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def decode_tokens(self) -> int:
        """Tokens of the decodes, drafts included."""
        if not self.drafts:
            return len(self.decodes)
        return len(self.decodes) + sum(len(draft.tokens) for draft in self.drafts)

    def timing(self, number: int, began: float, ended: float) -> PrefillTiming:
        """Return the timing of piece `number`, which was computed between `began` and `ended`."""
        piece = self.pieces[number]
        timelines = [other.sequence.timeline for other in self.pieces if other is not piece]
        parents = [timeline.traceparent for timeline in timelines if timeline is not None]
        sampled = [parent for parent in parents if parent.endswith(_SAMPLED)]
        return PrefillTiming(
            began=began,
            ended=ended,
            start=piece.start,
            stop=piece.stop,
            step=self.step,
            sequences=len(self.decodes) + len(self.pieces),
            tokens=self.tokens,
            checkpoints=tuple(checkpoint.depth for checkpoint in piece.checkpoints),
            beside=tuple(sampled[:MAX_BESIDE]),
            preemptions=piece.sequence.preemptions,
        )
