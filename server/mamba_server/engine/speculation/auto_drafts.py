"""`AutoDrafts`: chooses for each step between look-ups, the model's head and no drafts. Pure.

Measured gain decides. Look-ups are those of `NgramDrafts`, whose gain the head's has to exceed. The time of a
step with drafts of the head includes that of drafting. While the head does not pay, it foresees one token of
a sequence now and then, which is compared with the answer without being computed, so that drafts of the head
return when they would pay. The head reads the tokens of a step only if it was right a short while ago.
"""

from mamba_server.cache import Tokens
from mamba_server.engine.sequences.draft_record import HEAD_FADING, HEAD_PAUSE, DraftRecord, DraftShare
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.head_drafts import KIND, HeadDrafts
from mamba_server.engine.speculation.ngram_drafts import (
    CROWD,
    FEWEST,
    KINDS,
    LEAST_GAIN,
    PLAIN_EVERY,
    NgramDrafts,
    record_of,
)

TIME_OF_TRIAL = 0.5
"""Time of a trial, in steps without drafts: for a head with one layer of the model's size, and for code that
rarely runs."""
TIME_OF_READING = 0.1
"""Time that reading by the head adds to a step, in steps without drafts."""
READS_BEHIND_RIGHT = 12
"""Number of steps that the head reads after it was right about a token. It reads prompts in any case."""
LONGEST_HEAD_PAUSE = 256
"""Most tokens of a sequence between two trials of the head."""
QUIET_STEPS, MOST_QUIET_STEPS = 4, 128
"""Steps between two trials of the head in the whole engine: at first, and at most."""


class AutoDrafts(NgramDrafts):
    """Proposes drafts for one engine whose model has a head, as long as they promise to save time.

    A draft is looked up in the text, or comes from `head`; trials show how often each of the two is right.
    """

    kinds = (*KINDS, KIND)

    def __init__(self, most: int, rows: int, head: HeadDrafts) -> None:
        super().__init__(most, rows)
        self.head = head
        self._share_of_head = DraftShare(HEAD_FADING)
        self._turns = self._steps_of_head = 0
        self._reads, self._reads_until = False, 0
        self._next_trial_step, self._quiet = 0, QUIET_STEPS
        self._sizes = sorted({1, min(FEWEST, most), -(-most // 2), most})

    def reads(self) -> bool:
        """Return whether the head should read the tokens of the next step; if not, their keys are zeros."""
        return self._reads and self._step + self.rest.lasted < self._reads_until

    def _steps_ended(self, count: int) -> None:
        if self._reads and not self._turns:
            # The time of a step with the head's drafts includes that of reading.
            self._losses.spent(TIME_OF_READING * min(count, self._reads_until - self._step))
        super()._steps_ended(count)
        # The source may rest until then, so that all of it has to be affordable.
        self._reads_until = min(self._reads_until, self._step + self._losses.steps_of(TIME_OF_READING))
        self._reads = self._step < self._reads_until

    def _looked_for(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the drafts that are expected to save the most time, by the index of the decode."""
        look_ups, self._turns = super()._looked_for(decodes), 0
        is_crowd = len(decodes) > CROWD * self._rows
        if is_crowd:
            return look_ups
        may_draft = self._reads and self.costs.knows(len(decodes))
        gainful = self._chosen(decodes, self._best if look_ups else LEAST_GAIN) if may_draft else {}
        is_early = self._step < self._next_trial_step or not self._losses.affords(TIME_OF_TRIAL)
        trial = None if gainful or look_ups or is_early else self._on_trial(decodes)
        if not gainful and trial is None:
            return look_ups
        if any(sequence.in_flight for sequence in decodes):
            self._promising = True
            return {}
        if trial is not None:
            self._begin_trial_of_head(trial)
            return {}
        self._promising = True
        self._quiet = QUIET_STEPS
        self._steps_of_head += 1
        if self._steps_of_head % PLAIN_EVERY == 0:
            return {}
        return self._foreseen(decodes, gainful) or look_ups

    def _foreseen(self, decodes: list[Sequence], gainful: dict[int, int]) -> dict[int, Tokens]:
        """Compute and return the head's drafts for `decodes`, by their index.

        `gainful` is the number of tokens to draft for each index.
        """
        proposed = self.head.foresee(decodes, gainful)
        self._turns = max(map(len, proposed.values()), default=0)
        for index in proposed:
            record = record_of(decodes[index])
            record.origin = KIND
            record.head_pause = HEAD_PAUSE
        return proposed

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that `accepted` of the `drafted` tokens of a draft were right."""
        super().checked(sequence, drafted, accepted)
        record = record_of(sequence)
        if record.origin == KIND:
            self._observe_head(sequence, record, accepted, drafted)

    def _observe_head(self, sequence: Sequence, record: DraftRecord, accepted: int, drafted: int) -> None:
        """Record how many tokens of the head's draft were right, and decide when it is tried again."""
        record.head.observe(accepted, drafted)
        self._share_of_head.observe(accepted, drafted)
        if accepted:
            self._reads_until = self._step + READS_BEHIND_RIGHT
            # Some tokens are right by chance.
            self._quiet, record.head_pause = max(self._quiet // 4, QUIET_STEPS), HEAD_PAUSE
        record.next_head_trial = sequence.known_tokens + record.head_pause
        record.head_pause = min(4 * record.head_pause, LONGEST_HEAD_PAUSE)

    @property
    def _turns_of_head(self) -> int:
        return self._turns

    def _steps_to_trial(self, sequence: Sequence, record: DraftRecord) -> int:
        of_look_ups = super()._steps_to_trial(sequence, record)
        of_head = max(
            record.next_head_trial - sequence.known_tokens,
            self._next_trial_step - self._step,
            self._losses.steps_until(TIME_OF_TRIAL),
        )
        return min(of_look_ups, of_head)

    def _chosen(self, decodes: list[Sequence], least: float) -> dict[int, int]:
        """Return the number of drafts of each sequence, by index, that promises the shortest time per token.

        The result is empty if no choice gains more than `least`, a multiple of the speed without drafts.
        """
        prior = self._share_of_head.share(0.5)
        shares = [record_of(sequence).head for sequence in decodes]
        ranked = sorted(range(len(decodes)), key=lambda index: -shares[index].share(prior))[: self._rows]
        best, kept = least, (0, 0)
        for drafts in self._sizes:
            expected = 0.0
            for count, index in enumerate(ranked, 1):
                expected += shares[index].expected(drafts, prior)
                if count & (count - 1) and count < len(ranked):
                    # Powers of two and the whole are close enough, and looked at in no time.
                    continue
                ratio = self.costs.ratio(len(decodes), count * drafts, drafts)
                gain = (1.0 + expected / len(decodes)) / ratio
                if gain > best and self._losses.affords(ratio - 1.0):
                    best, kept = gain, (count, drafts)
        count, drafts = kept
        if not count:
            for drafts in self._sizes:
                self.costs.refuse(len(decodes), len(ranked) * drafts, drafts)
        return dict.fromkeys(ranked[:count], drafts)

    # --- trials of the head ---------------------------------------------------------------------------

    def _on_trial(self, decodes: list[Sequence]) -> Sequence | None:
        """Return a sequence for which a trial of the head is due; None = there is none."""
        for sequence in decodes:
            if sequence.known_tokens >= record_of(sequence).next_head_trial:
                return sequence
        return None

    def _begin_trial_of_head(self, sequence: Sequence) -> None:
        """Let the head foresee the next token of `sequence`, and remember it to compare it with the answer.

        The step computes no draft for it.
        """
        self._next_trial_step = self._step + self._quiet
        self._quiet = min(2 * self._quiet, MOST_QUIET_STEPS)
        token = self.head.next_token(sequence)
        if token is not None:
            self._losses.spent(TIME_OF_TRIAL)
            record_of(sequence).foreseen = (sequence.known_tokens, token)

    def _try_out(self, decodes: list[Sequence]) -> None:
        """Compare the tokens that the head foresaw with the tokens that were sampled since."""
        super()._try_out(decodes)
        for sequence in decodes:
            record = record_of(sequence)
            if record.foreseen is None or sequence.known_tokens <= record.foreseen[0]:
                continue
            place, token = record.foreseen
            record.foreseen = None
            right = int(sequence.token_ids[place] == token)
            self._losses.foreseen(1.0 + right, self.costs.ratio(1, 1, 1))
            self._observe_head(sequence, record, right, 1)
