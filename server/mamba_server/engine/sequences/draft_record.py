"""`DraftRecord`: the worth of a sequence's drafts so far, which their source reads. Pure."""

from mamba_server.cache import NO_TOKENS, Tokens

DRAFT_FADING = 0.85
"""Weight of a draft after each later one."""
PRIOR = 2.0
"""Number of tokens for which the share of all sequences counts in that of a new one."""


class DraftRecord:
    """Record of one sequence. A trial is a draft that is compared with the answer without being computed."""

    __slots__ = ("_accepted", "_checked", "forced", "hits", "next_trial", "pause", "trial", "trial_start")

    def __init__(self) -> None:
        self._accepted = self._checked = 0.0
        self.forced = False
        """Whether its last draft is what the form of the answer leaves no choice about."""
        self.hits = 1.0
        """Share of the last look-ups that found something."""
        self.trial: Tokens = NO_TOKENS
        """Tokens on trial; none = no trial."""
        self.trial_start = 0
        """Number of known tokens when the trial began."""
        self.next_trial = 0
        """Number of known tokens from which on another trial begins."""
        self.pause = 1
        """Tokens between two trials."""

    def observe(self, accepted: int, drafted: int) -> None:
        """Record a draft of which `accepted` tokens were right, and then one was wrong or none was left."""
        self._accepted = DRAFT_FADING * self._accepted + accepted
        self._checked = DRAFT_FADING * self._checked + min(accepted + 1, drafted)

    def looked_up(self, *, hit: bool) -> None:
        """Record whether a look-up found something to propose."""
        self.hits += (1.0 - DRAFT_FADING) * (hit - self.hits)

    def share(self, prior: float) -> float:
        """Return the probability that the next token of a draft is right. `prior`: that of all sequences."""
        return (self._accepted + PRIOR * prior) / (self._checked + PRIOR)
