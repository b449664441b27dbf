"""Defects of a second model that drafts: of its states, lanes, sampling and failures, and of its plan."""

from seeded import Mutant

GATE = "tests/gates/test_model_drafts.py"
UNIT = "tests/unit/engine/test_model_drafts.py"

MUTANTS = (
    Mutant(
        name="rejected drafts stay in the state from which the draft model goes on",
        keeps="The first state of a lane knows committed tokens alone.",
        where="execution.draft_runner:DraftRunner._drafting",
        old="lanes + 1 + self.lanes.lanes",
        new="lanes + 1",
        tests=(GATE,),
    ),
    Mutant(
        name="drafts are drawn with the random number of another place",
        keeps="A draft is drawn as the step that checks it draws.",
        where="execution.draft_runner:DraftRunner._sample",
        old="piece.stop + turn",
        new="piece.stop",
        tests=(GATE,),
    ),
    Mutant(
        name="a sequence that leaves keeps its lane",
        keeps="An engine without sequences follows none.",
        where="engine.boot:boot",
        old="core.scheduler.on_leave.append(follower.lanes.release)",
        new="pass",
        tests=(GATE,),
    ),
    Mutant(
        name="a long prompt is read in one piece",
        keeps="What the draft model reads between two steps is bounded.",
        where="speculation.model_drafts:ModelDrafts._piece",
        old="aligned_piece(start, unread, budget, self._chunk)",
        new="unread",
        tests=(UNIT,),
    ),
    Mutant(
        name="what a failed call has read counts as read",
        keeps="States of no known depth are forgotten.",
        where="speculation.model_drafts:ModelDrafts._failed",
        old="self.lanes.release(piece.lane.sequence)",
        new="pass",
        tests=(UNIT,),
    ),
    Mutant(
        name="the plan forgets the pages of a draft model",
        keeps="Memory beside the arena is part of the plan.",
        where="mamba_planner.draft_models:DraftModelMemory.bytes",
        old="self.pages * self.page_bytes",
        new="0",
        tests=("tests/unit/engine/test_draft_memory.py",),
    ),
)
