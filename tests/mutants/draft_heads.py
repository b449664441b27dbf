"""Defects of heads for drafts: of the hidden states that they go on from, and of what their pages hold."""

from seeded import Mutant

HEAD = "tests/unit/model/test_draft_head.py"
GATE = "tests/gates/test_head_drafts.py"
CALLS = "tests/unit/model/test_head_calls.py"

MUTANTS = (
    Mutant(
        name="a head goes on behind a hit without the hidden state before it",
        keeps="A page ends with the hidden state of its last token.",
        where="model.hidden_rows:HiddenPlan.before",
        old="preceding[self.resumed] = tails[page_table[self.table_row, self.column].long()]",
        new="pass",
        tests=(HEAD,),
    ),
    Mutant(
        name="no page keeps the hidden state of its last token",
        keeps="A page ends with the hidden state of its last token.",
        where="model.hidden_rows:HiddenPlan.keep",
        old="tails[self.page[self.ending]] = hidden[self.ending]",
        new="pass",
        tests=(HEAD, GATE),
    ),
    Mutant(
        name="a head goes on from the token before the accepted drafts",
        keeps="The number of accepted drafts chooses the hidden state of the last one.",
        where="model.hidden_rows:HiddenMemory.place",
        old="np.where(accepted > 0, of_draft, row)",
        new="np.asarray(row)",
        tests=(HEAD, GATE),
    ),
    Mutant(
        name="every draft is paired with the hidden state of the first one",
        keeps="A draft follows the draft before it.",
        where="model.hidden_rows:_link_drafts",
        old="last[:count] = np.arange(row, row + count)",
        new="pass",
        tests=(HEAD, GATE),
    ),
    Mutant(
        name="the first token has a key of its own",
        keeps="The first token is in no pair: its key and value are zeros.",
        where="layers.attention:Attention.remember",
        old="key[empty] = 0; value[empty] = 0",
        new="value[empty] = 0",
        tests=(HEAD,),
    ),
    Mutant(
        name="the plan forgets the hidden state at the end of a page",
        keeps="A page has the bytes that the plan says.",
        where="mamba_planner.arithmetic:page_tail_bytes",
        old="model.hidden_size * DTYPE_BYTES[dtype] if model.draft_head else 0",
        new="0",
        tests=("tests/unit/engine/test_draft_memory.py",),
    ),
    Mutant(
        name="the call of a step keeps the noise of the first absorbed input",
        keeps="Each absorbed input is rounded by the word of its own depth.",
        where="whole_steps.replayed_rows:ReplayedRows.place",
        old="self._noise[:absorbing, :drafts.absorbed_noise.shape[1]] = drafts.absorbed_noise",
        new="self._noise[:absorbing] = drafts.absorbed_noise[:, :1]",
        tests=(GATE,),
    ),
    Mutant(
        name="the call of a step absorbs inputs of another lane",
        keeps="Inputs wait in the lane of their row.",
        where="whole_steps.replayed_rows:ReplayedRows.place",
        old="integers[1, :absorbing] = drafts.absorbed_lane",
        new="integers[1, :absorbing] = 0",
        tests=(GATE,),
    ),
    Mutant(
        name="a head reads every token at the depth of the last one",
        keeps="A head drafts behind the last token of each sequence.",
        where="whole_steps.head_steps:HeadSteps.draft",
        old="np.array([rows, depths, counts, last_tokens, places], np.int32)",
        new="np.array([rows, depths * 0 + depths.max(), counts, last_tokens, places], np.int32)",
        tests=(CALLS,),
    ),
)
