"""`AutoDrafts`: chooses for each step between look-ups, the model's head and no drafts. Pure.

Measured gain decides. Look-ups are those of `NgramDrafts`, whose gain the head's has to exceed. The time of a
step with drafts of the head includes that of drafting. While the head does not pay, it drafts two tokens of a
sequence now and then, so that it returns when it would; where it is hardly ever right, it stops reading what
steps compute.
"""

from mamba_server.cache import Tokens
from mamba_server.engine.sequences.draft_record import HEAD_FADING, HEAD_PAUSE, DraftShare
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.head_drafts import KIND, HeadDrafts
from mamba_server.engine.speculation.ngram_drafts import (
    CROWD,
    KINDS,
    LEAST_GAIN,
    PLAIN_EVERY,
    NgramDrafts,
    record_of,
)

TRIED = 2
"""Drafts of a sequence on trial."""
LONGEST_HEAD_PAUSE = 256
"""Most tokens of a sequence between two trials of the head."""
QUIET_STEPS, MOST_QUIET_STEPS = 4, 32
"""Steps between two trials, of whichever sequences: at first, and after several."""
MISSES, MOST_MISSES = 3, 12
"""Drafts in a row without a right token, after which the head stops reading; the second where it was right
before, more often than `HOPELESS_SHARE`."""
HOPELESS_SHARE = 0.1


class AutoDrafts(NgramDrafts):
    """Drafts of one engine whose model has a head. `head`: its drafts."""

    kinds = (*KINDS, KIND)

    def __init__(self, most: int, rows: int, head: HeadDrafts) -> None:
        super().__init__(most, rows)
        self.head = head
        self._share_of_head = DraftShare(HEAD_FADING)
        self._misses = self._quiet = 0
        self._next_quiet = QUIET_STEPS
        self._steps_of_head = self._turns = 0
        self._sizes = sorted({1, min(TRIED, most), -(-most // 2), most})

    def reads(self) -> bool:
        """Return whether the head should read the tokens of the next step, or have keys of zeros for them."""
        is_hopeless = self._share_of_head.share(0.0) < HOPELESS_SHARE
        return self._misses < (MISSES if is_hopeless else MOST_MISSES)

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the drafts that are expected to save the most time, by the index of the decode."""
        look_ups, self._turns = super().propose(decodes), 0
        if len(decodes) > CROWD * self._rows or not self.costs.knows(len(decodes)):
            return look_ups
        gainful = self._chosen(decodes, self._best if look_ups else LEAST_GAIN) if self.reads() else {}
        self._quiet -= 1
        trial = {} if gainful or look_ups or self._quiet > 0 else self._on_trial(decodes)
        if not gainful and not trial:
            return look_ups
        self._promising = True
        if any(sequence.in_flight for sequence in decodes):
            return {}
        if trial:
            self._quiet = self._next_quiet
            self._next_quiet = min(2 * self._next_quiet, MOST_QUIET_STEPS)
        else:
            self._next_quiet = QUIET_STEPS
            self._steps_of_head += 1
            if self._steps_of_head % PLAIN_EVERY == 0:
                return {}
        return self._foreseen(decodes, gainful, trial) or look_ups

    def _foreseen(
        self, decodes: list[Sequence], gainful: dict[int, int], trial: dict[int, int]
    ) -> dict[int, Tokens]:
        """Return the head's drafts that promise to pay, or else those on trial."""
        proposed = self.head.foresee(decodes, gainful or trial)
        self._turns = max(map(len, proposed.values()), default=0)
        for index in proposed:
            record = record_of(decodes[index])
            record.origin = KIND
            if gainful:
                record.head_pause = HEAD_PAUSE
        return proposed

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record what became of a draft."""
        super().checked(sequence, drafted, accepted)
        record = record_of(sequence)
        if record.origin != KIND:
            return
        record.head.observe(accepted, drafted)
        self._share_of_head.observe(accepted, drafted)
        self._misses = 0 if accepted else self._misses + 1
        record.head_pause = min(4 * record.head_pause, LONGEST_HEAD_PAUSE)
        record.next_head_trial = sequence.known_tokens + record.head_pause

    def _turns_of(self, schedule: Schedule) -> int:
        return self._turns if schedule.drafts else 0

    def _chosen(self, decodes: list[Sequence], least: float) -> dict[int, int]:
        """Return the number of drafts of each sequence, by index, that promises the most and over `least`."""
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
                if (gain := (1.0 + expected / len(decodes)) / ratio) > best:
                    best, kept = gain, (count, drafts)
        count, drafts = kept
        if not count:
            for drafts in self._sizes:
                self.costs.refuse(len(decodes), len(ranked) * drafts, drafts)
        return dict.fromkeys(ranked[:count], drafts)

    def _on_trial(self, decodes: list[Sequence]) -> dict[int, int]:
        """Return the sequence, if any, whose turn it is to show whether the head would be right."""
        for index, sequence in enumerate(decodes):
            if sequence.known_tokens >= record_of(sequence).next_head_trial:
                return {index: min(TRIED, self.most)}
        return {}
