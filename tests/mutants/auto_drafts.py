"""Defects of the choice between look-ups, a model's head and no drafts, and of what a head passes over."""

from seeded import Mutant

CHOICE = "tests/unit/engine/test_auto_drafts.py"
LIMIT = "tests/unit/engine/test_draft_losses.py"
PLAN = "tests/unit/engine/test_draft_memory.py"
CALLS = "tests/unit/model/test_head_calls.py"

MUTANTS = (
    Mutant(
        name="the time of drafting is not counted",
        keeps="Auto leaves drafts out where they are measured to cost more than they save.",
        where="speculation.auto_drafts:AutoDrafts._chosen",
        old="(1.0 + expected / len(decodes)) / ratio",
        new="1.0 + expected / len(decodes)",
        tests=(CHOICE,),
    ),
    Mutant(
        name="a head that was left out never returns",
        keeps="A head that does not pay drafts now and then, so that it returns when it would.",
        where="speculation.auto_drafts:AutoDrafts._on_trial",
        old="sequence.known_tokens >= record_of(sequence).next_head_trial",
        new="False",
        tests=(CHOICE,),
    ),
    Mutant(
        name="the head displaces look-ups that promise more",
        keeps="A step has the drafts that promise the most.",
        where="speculation.auto_drafts:AutoDrafts._chosen",
        old="best, kept = least, (0, 0)",
        new="best, kept = 0.0, (0, 0)",
        tests=(CHOICE,),
    ),
    Mutant(
        name="the plan of auto forgets the head",
        keeps="The plan counts the head under the conditions under which the engine loads it.",
        where="mamba_planner.draft_heads:planned_model",
        old="auto_uses_head(model, settings, device)",
        new="False",
        tests=(PLAN,),
    ),
    Mutant(
        name="a head that does not read leaves what was in its pages before",
        keeps="Keys and values of tokens that the head passes over are zeros.",
        where="whole_steps.step_decoder:StepDecoder.__call__",
        old="step.head_passes = not head_reads and decodes.replay is None",
        new="step.head = self.head.address if self.head is not None and head_reads else None",
        tests=(CALLS,),
    ),
    Mutant(
        name="no sequence tries a head that was left out",
        keeps="A head that does not pay is tried by comparing what it foresees with the answer.",
        where="speculation.auto_drafts:AutoDrafts._on_trial",
        old="return sequence",
        new="return None",
        tests=(CHOICE,),
    ),
    Mutant(
        name="drafts lose whatever they promise wrongly",
        keeps="Drafts that promise a gain and have none end when they have lost some steps.",
        where="speculation.loss_limit:LossLimit.drafted",
        old="self._left = min(self._left + gain, MOST_CREDIT)",
        new="pass",
        tests=(LIMIT,),
    ),
    Mutant(
        name="sequences that join wait for the rest of others",
        keeps="The source rests only while the sequences stay the same.",
        where="scheduling.draft_rows:Rest.goes_on",
        old="not self.steps or len(decodes) != self._decodes or decodes[-1].order != self._last",
        new="not self.steps",
        tests=(LIMIT,),
    ),
    Mutant(
        name="a rest passes over inputs that wait",
        keeps="Accepted drafts are absorbed by the next step of their row, also behind a step that it skips.",
        where="scheduling.draft_rows:DraftRows.plan",
        old="self._proposals.rest.end()",
        new="pass",
        tests=(LIMIT,),
    ),
    Mutant(
        name="each answer is searched as often as the first",
        keeps="Looking for drafts costs little where all answers have none.",
        where="speculation.ngram_drafts:NgramDrafts._compare",
        old="self._first_pause = min(2 * self._first_pause, FIRST_PAUSE)",
        new="pass",
        tests=(LIMIT,),
    ),
    Mutant(
        name="an answer loses what another one has gained",
        keeps="What an answer may lose is a share of its own steps and a small credit.",
        where="speculation.loss_limit:LossLimit.answer_began",
        old="min(self._left, CREDIT)",
        new="self._left",
        tests=(LIMIT,),
    ),
    Mutant(
        name="promises that nothing keeps are believed for ever",
        keeps="A promise adds to what an answer may lose once, until a gain pays it back.",
        where="speculation.loss_limit:LossLimit.foreseen",
        old="self._lent += lent",
        new="pass",
        tests=(LIMIT,),
    ),
    Mutant(
        name="any beginning that occurred before is taken for a copy",
        keeps="Texts that begin to repeat and go on differently have no drafts.",
        where="speculation.ngram_drafts:NgramDrafts._compare",
        old="right >= least and 1.0 + right > LEAST_GAIN * time",
        new="right > 0",
        tests=(CHOICE,),
    ),
    Mutant(
        name="drafts are tried whose loss the limit does not cover",
        keeps="What drafts may lose is there before they are tried.",
        where="speculation.ngram_drafts:NgramDrafts._affords",
        old="self._losses.affords(self.costs.ratio(decodes, rows) - 1.0)",
        new="True",
        tests=(CHOICE, LIMIT),
    ),
)
