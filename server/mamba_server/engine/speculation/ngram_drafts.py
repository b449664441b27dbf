"""`NgramDrafts`: proposes drafts by look-up, and leaves them out where they lose time. Pure.

Where the form of an answer says what has to come next, that is its draft.

The scheduler asks for drafts before a launch, the core reports what became of them. While drafts are left
out, look-ups are compared with the answers all the same, so that drafts return when they would pay. Between
two such comparisons the source rests: steps are those of an engine without drafts.
"""

import numpy as np

from mamba_server.cache import Tokens
from mamba_server.engine.scheduling.draft_rows import Rest
from mamba_server.engine.sequences.draft_record import DraftRecord
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.draft_counts import DraftCounts
from mamba_server.engine.speculation.loss_limit import LossLimit
from mamba_server.engine.speculation.ngram import SHORTEST, continuation, shared_tokens
from mamba_server.engine.speculation.step_costs import StepCosts

KINDS: tuple[str, ...] = ("ngram", "form")
"""Origins of drafts: a look-up, or the form of the answer, which leaves no choice."""
FEWEST = 2
"""Smallest length of a look-up's draft that is considered."""
LEAST_GAIN = 1.05
"""Least expected tokens per time, as a multiple of a step without drafts."""
SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64
"""Tokens between two trials of a sequence whose look-ups are right; most tokens where they are not."""
FIRST_TRIAL = SHORTEST + FEWEST
"""Tokens of a sequence before its first trial: as many as a copy needs to show that it is one."""
FIRST_PAUSE = 16
"""Largest value of `NgramDrafts._first_pause`, which doubles while first trials find no copies."""
CROWD = 4
"""Number of decodes, as a multiple of the sequences that may have drafts, beyond which no draft is looked
for: such a step has many rows without drafts, and looking at each sequence would take time."""
SHORTEST_REST, LONGEST_REST = 4, 64
"""Least and most steps without drafts before another look, while the sequences stay the same."""
TIME_OF_SEARCH, TIME_OF_ABSORBING = 0.1, 0.3
"""Time of a look-up that finds nothing, and of absorbing accepted drafts in a step without drafts, in steps
of the shipped model, which are the shortest there are."""
PLAIN_EVERY = 64
"""Number of steps with drafts of which one goes without, so that the time without drafts stays known."""


class NgramDrafts:
    """Proposes drafts that repeat earlier text of the sequence, for one engine, while that saves time.

    `most` is the largest number of drafts behind a token, and `rows` the largest number of sequences of a
    step with drafts. With `always`, drafts are proposed whatever they cost.
    """

    kinds = KINDS

    def __init__(self, most: int, rows: int, *, always: bool = False) -> None:
        self.most, self._rows, self._always = most, rows, always
        self.costs = StepCosts()
        self._share = DraftRecord()
        self._losses = LossLimit()
        self._promising = always
        self.rest = Rest()
        self._step = 0
        """Number of the step that asks for drafts."""
        self._first_pause = SHORTEST_PAUSE
        """Half the tokens between the first two trials of a new sequence."""
        self._drafted_steps = 0
        self._accepted = 0
        """Number of right drafts in the step that is being committed."""
        self._best = 1.0
        """Gain that the last proposal promised; 1 = there was none."""
        self._counts = DraftCounts(*self.kinds)

    def wanted(self) -> bool:
        """Return whether the next step should have drafts."""
        return self._promising

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the drafts that are expected to save time, by the index of the decode."""
        self._steps_ended(self.rest.end() + 1)
        proposed = self._looked_for(decodes)
        if not proposed and not self._promising and not self._always:
            self._rest(decodes)
        return proposed

    def _steps_ended(self, count: int) -> None:
        """Record that `count` steps have ended since the source was last asked for drafts."""
        self._step += count
        self._losses.steps_ended(count)

    def _looked_for(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Look for drafts of this step; return the ones to check, by the index of the decode."""
        self._best = 1.0
        if not self._always:
            if len(decodes) > CROWD * self._rows:
                self._promising = False
                return {}
            self._try_out(decodes)
        if any(sequence.in_flight for sequence in decodes):
            # This step was planned while another one runs; the next may wait for it.
            self._promising = self._always or self._promises(decodes, {})
            return {}
        forced = self._forced(decodes)
        if not self._always and not (self.costs.knows(len(decodes)) and self._promises(decodes, forced)):
            self._promising = False
            return {}
        self._drafted_steps += 1
        if not self._always and self._drafted_steps % PLAIN_EVERY == 0:
            return {}
        proposed = self._look_up(decodes, forced)
        if not self._always:
            proposed = self._worthwhile(decodes, proposed, forced)
        for index in proposed:
            record_of(decodes[index]).origin = "form" if index in forced else "ngram"
        self._promising = self._always or bool(proposed) or self._promises(decodes, {})
        return proposed

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that `accepted` of the `drafted` tokens of a draft were right."""
        record = record_of(sequence)
        if record.origin == "ngram":
            record.next_trial = sequence.known_tokens + SHORTEST_PAUSE
            record.is_doubted = not accepted
            record.observe(accepted, drafted)
            self._share.observe(accepted, drafted)
        self._counts.checked(record.origin, drafted, accepted)
        self._accepted += accepted

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Record that `schedule` took `seconds` (0 = not timed), and count its drafts."""
        decodes = len(schedule.decodes)
        rows = schedule.decode_tokens - decodes if schedule.drafts else 0
        self._counts.step_ended(schedule)
        if decodes and not schedule.pieces:
            turns = self._turns_of_head if rows else 0
            absorbs = bool(schedule.absorbed) and not rows
            if seconds and not absorbs:
                self.costs.observe(decodes, rows, seconds, turns)
            if absorbs:
                self._losses.spent(TIME_OF_ABSORBING)
            if rows:
                # Each row and turn is worth a step at most, however long an interrupted step took.
                time = min(self.costs.ratio(decodes, rows, turns), 1.0 + rows + turns)
                self._losses.drafted(1.0 + self._accepted / decodes, time)
        self._accepted = 0

    @property
    def _turns_of_head(self) -> int:
        """Tokens that the model's head foresaw for a sequence before the step, one after another."""
        return 0

    def counters(self) -> dict[str, float]:
        """Return counts since the start."""
        return self._counts.counters()

    # --- expectation ---------------------------------------------------------------------------------

    def _expected(self, sequence: Sequence, drafts: int) -> float:
        """Return how many of the next `drafts` tokens are expected to be right."""
        return record_of(sequence).expected(drafts, self._share.share(0.5))

    def _gain(self, decodes: int, drafts: int, expected: float) -> float:
        """Return the expected tokens per time, as a multiple of a step without drafts."""
        return (1.0 + expected / decodes) / self.costs.ratio(decodes, drafts)

    def _promises(self, decodes: list[Sequence], forced: dict[int, Tokens]) -> bool:
        """Return whether drafts would pay if look-ups found as much as lately."""
        best = sorted(
            (
                float(len(forced[index]))
                if index in forced
                else record_of(sequence).hits * self._expected(sequence, self.most)
                for index, sequence in enumerate(decodes)
            ),
            reverse=True,
        )[: self._rows]
        expected, gain = 0.0, 0.0
        for count, each in enumerate(best, 1):
            expected += each
            gain = max(gain, self._gain(len(decodes), count * self.most, expected))
        if gain <= LEAST_GAIN and expected >= len(decodes):
            self.costs.refuse(len(decodes), len(best) * self.most)
        # What a form leaves no choice about is right, whatever other drafts have lost.
        return gain > LEAST_GAIN and (bool(forced) or self._affords(len(decodes), min(FEWEST, self.most)))

    def _affords(self, decodes: int, rows: int) -> bool:
        """Return whether a step of `decodes` sequences may have that many drafts, all of them wrong."""
        return self._losses.affords(self.costs.ratio(decodes, rows) - 1.0)

    def _forced(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the tokens that the form of an answer leaves no choice about, by the index of the decode."""
        forced: dict[int, Tokens] = {}
        for index, sequence in enumerate(decodes):
            if sequence.grammar is None or len(forced) == self._rows:
                continue
            if tokens := sequence.grammar.forced()[: self.most]:
                forced[index] = np.array(tokens, np.int32)
        return forced

    def _look_up(self, decodes: list[Sequence], forced: dict[int, Tokens]) -> dict[int, Tokens]:
        """Return drafts: the tokens `forced` by forms, and the results of look-ups for other decodes."""
        proposed = dict(forced)
        for index, sequence in enumerate(decodes):
            if index in forced:
                continue
            if len(proposed) >= self._rows:
                break
            tokens = continuation(sequence.known_token_ids(), self.most)
            record_of(sequence).looked_up(hit=len(tokens) > 0)
            if len(tokens):
                proposed[index] = tokens
        return proposed

    def _worthwhile(
        self, decodes: list[Sequence], proposed: dict[int, Tokens], forced: dict[int, Tokens]
    ) -> dict[int, Tokens]:
        """Choose the sequences and lengths of drafts that promise the most tokens per time; return them."""

        def expected_of(index: int, drafts: int) -> float:
            if index in forced:
                return float(min(len(forced[index]), drafts))
            return self._expected(decodes[index], drafts)

        ranked = sorted(proposed, key=lambda index: -expected_of(index, self.most))
        best, kept = LEAST_GAIN, (0, 0)
        for drafts in {self.most, -(-self.most // 2), min(FEWEST, self.most)}:
            expected = 0.0
            for count, index in enumerate(ranked, 1):
                expected += expected_of(index, drafts)
                gain = self._gain(len(decodes), count * drafts, expected)
                if gain > best and (forced or self._affords(len(decodes), count * drafts)):
                    best, kept = gain, (count, drafts)
        self._best, (count, drafts) = best, kept
        if not count:
            self._losses.spent(TIME_OF_SEARCH)
        if ranked and not count:
            self.costs.refuse(len(decodes), self.most)
        return {index: proposed[index][:drafts] for index in ranked[:count]}

    # --- rests ----------------------------------------------------------------------------------------

    def _rest(self, decodes: list[Sequence]) -> None:
        """Rest until a trial of a sequence is due, at one token a step; not while an answer follows rules."""
        if any(each.grammar is not None for each in decodes):
            # What a form leaves no choice about shows at once.
            return
        due = min(self._steps_to_trial(each, record_of(each)) for each in decodes)
        # The step behind the rest asks.
        self.rest.begin(min(max(due, SHORTEST_REST), LONGEST_REST) - 1, decodes)

    def _steps_to_trial(self, sequence: Sequence, record: DraftRecord) -> int:
        """Return the number of tokens until a trial of a sequence."""
        return record.next_trial - sequence.known_tokens

    # --- trials --------------------------------------------------------------------------------------

    def _try_out(self, decodes: list[Sequence]) -> None:
        """Compare what look-ups would have foreseen with the last tokens, now and then."""
        looks = 0
        for sequence in decodes:
            record = record_of(sequence)
            if not record.next_trial:
                record.pause = self._first_pause
                record.next_trial = sequence.known_tokens + FIRST_TRIAL - 1
                self._losses.answer_began()
            if sequence.known_tokens >= record.next_trial and looks < self._rows:
                looks += 1
                self._compare(sequence, record)

    def _compare(self, sequence: Sequence, record: DraftRecord) -> None:
        shared = shared_tokens(sequence.known_token_ids())
        right = min(max(shared - SHORTEST, 0), self.most)
        time = self.costs.ratio(1, self.most)
        # A beginning that occurred before is often no copy: what it shares has to be worth a draft.
        least = self.most if record.is_doubted else FEWEST
        is_copy = right >= least and 1.0 + right > LEAST_GAIN * time
        if is_copy:
            record.hits = 1.0
            record.observe(right, self.most)
            self._losses.foreseen(1.0 + right, time)
            self._first_pause = SHORTEST_PAUSE
        elif record.pause == self._first_pause:
            self._first_pause = min(2 * self._first_pause, FIRST_PAUSE)
        record.pause = SHORTEST_PAUSE if is_copy else min(2 * record.pause, LONGEST_PAUSE)
        # What may be the beginning of a copy shows soon whether it is one, but once.
        record.hurries = shared > 0 and not record.hurries
        pause = SHORTEST_PAUSE if record.hurries else record.pause
        record.next_trial = sequence.known_tokens + pause


def record_of(sequence: Sequence) -> DraftRecord:
    """Return the record of a sequence's drafts, a new one at first."""
    if sequence.draft_record is None:
        sequence.draft_record = DraftRecord()
    return sequence.draft_record
