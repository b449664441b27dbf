"""`DraftRecord`: the worth of a sequence's drafts so far, which their source reads. Pure."""

DRAFT_FADING = 0.85
"""Factor by which each later draft reduces the weight of a draft."""
HEAD_FADING = 0.97
"""The same for drafts of the model's head, which are right by chance rather than by stretches of text."""
HEAD_PAUSE = 8
"""Least number of tokens between two trials of the head."""
PRIOR, HEAD_PRIOR = 2.0, 8.0
"""Weight of the share of all sequences in the share of one sequence, as a number of tokens: for look-ups, and
for the head. Sequences differ in how much they copy, but hardly in how often a head is right."""


class DraftShare:
    """Estimates how likely the next drafted token of one kind is right, from the recent drafts.

    Each new draft multiplies the weight of the older ones by `fading`. What is expected beforehand counts as
    `prior_tokens` tokens.
    """

    __slots__ = ("_accepted", "_checked", "_fading", "_prior_tokens")

    def __init__(self, fading: float = DRAFT_FADING, prior_tokens: float = PRIOR) -> None:
        self._accepted = self._checked = 0.0
        self._fading, self._prior_tokens = fading, prior_tokens

    def observe(self, accepted: int, drafted: int) -> None:
        """Record a draft of which `accepted` tokens were right, and then one was wrong or none was left."""
        self._accepted = self._fading * self._accepted + accepted
        self._checked = self._fading * self._checked + min(accepted + 1, drafted)

    def share(self, prior: float) -> float:
        """Return the probability that the next token of a draft is right.

        `prior` is the probability over all sequences.
        """
        return (self._accepted + self._prior_tokens * prior) / (self._checked + self._prior_tokens)

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
        "foreseen", "head", "head_pause", "hits", "hurries", "is_doubted", "next_head_trial", "next_trial",
        "origin", "pause",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.origin = "ngram"
        """Kind of its last draft: ngram, form (tokens that the form of the answer leaves no choice about) or
        mtp."""
        self.hits = 0.0
        """Share of the last look-ups that found something, from the first search on that shows a copy."""
        self.is_doubted = False
        """Whether nothing of its last draft was right, so that only a long copy promises more."""
        self.hurries = False
        """Whether the next trial comes early, because the last one saw what may begin a copy."""
        self.next_trial = 0
        """Number of known tokens from which on there is another trial."""
        self.pause = 1
        """Tokens between two trials."""
        self.head = DraftShare(HEAD_FADING, HEAD_PRIOR)
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
