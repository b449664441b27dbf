"""`DraftRecord`: the worth of a sequence's drafts so far, which their source reads. Pure."""

DRAFT_FADING = 0.85
"""Weight of a draft after each later one."""
HEAD_FADING = 0.97
"""The same for drafts of the model's head, which are right by chance rather than by stretches of text."""
HEAD_PAUSE = 8
"""Least number of tokens between two trials of the head."""
PRIOR = 2.0
"""Number of tokens for which the share of all sequences counts in the share of a new one."""


class DraftShare:
    """Estimates how likely the next drafted token of one kind is right, from the recent drafts.

    Each new draft multiplies the weight of the older ones by `fading`.
    """

    __slots__ = ("_accepted", "_checked", "_fading")

    def __init__(self, fading: float = DRAFT_FADING) -> None:
        self._accepted = self._checked = 0.0
        self._fading = fading

    def observe(self, accepted: int, drafted: int) -> None:
        """Record a draft of which `accepted` tokens were right, and then one was wrong or none was left."""
        self._accepted = self._fading * self._accepted + accepted
        self._checked = self._fading * self._checked + min(accepted + 1, drafted)

    def share(self, prior: float) -> float:
        """Return the probability that the next token of a draft is right.

        `prior` is the probability over all sequences.
        """
        return (self._accepted + PRIOR * prior) / (self._checked + PRIOR)

    def expected(self, drafts: int, prior: float) -> float:
        """Return how many of the next `drafts` tokens are expected to be right.

        `prior` is the probability of a right token over all sequences.
        """
        share = min(self.share(prior), 0.999)
        return share * (1.0 - share**drafts) / (1.0 - share)


class DraftRecord(DraftShare):
    """Results of the drafts of one sequence, by which their source decides whether to draft.

    A trial is a draft that is compared with the answer without being computed. The methods of `DraftShare`
    are about look-ups; `head` counts the drafts of the model's head.
    """

    __slots__ = (
        "foreseen", "head", "head_pause", "hits", "next_head_trial", "next_trial", "origin", "pause",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.origin = "ngram"
        """Kind of its last draft: ngram, form (tokens that the form of the answer leaves no choice about) or
        mtp."""
        self.hits = 1.0
        """Share of the last look-ups that found something."""
        self.next_trial = 0
        """Number of known tokens from which on there is another trial."""
        self.pause = 1
        """Tokens between two trials."""
        self.head = DraftShare(HEAD_FADING)
        """Share of the drafts of the model's head."""
        self.foreseen: tuple[int, int] | None = None
        """Number of known tokens, and the one that the head foresees next, on trial; None = no trial."""
        self.next_head_trial = 0
        """Number of known tokens from which on the head is tried again, though it does not promise to pay."""
        self.head_pause = HEAD_PAUSE
        """Tokens between two such trials."""

    def looked_up(self, *, hit: bool) -> None:
        """Record whether a look-up found (`hit`) something to propose."""
        self.hits += (1.0 - DRAFT_FADING) * (hit - self.hits)
