"""Defects of audits, and of the quarantine of what they find."""

from seeded import Mutant

AUDITS = "tests/unit/engine/test_audits.py::"
QUARANTINE = "tests/unit/cache/test_quarantine.py::"
STORE = "tests/unit/tier/test_bundle_store.py::"
FOUND = f"{AUDITS}test_a_flipped_bit_in_one_layer_is_found_named_and_never_resumed_again"
GIVES_WAY = f"{AUDITS}test_an_audit_gives_way_to_a_request_and_is_abandoned_after_three_times"
DRAFTED = f"{AUDITS}test_a_wrong_absorption_is_found_and_ends_speculation_until_a_person_begins_it_again"

MUTANTS = (
    Mutant(
        name="what was computed from a wrong checkpoint stays",
        keeps="T10: a quarantined checkpoint takes along all that continue its text.",
        where="cache.transit:Quarantine.quarantine",
        old="reversed(nodes)",
        new="reversed(nodes[:1])",
        tests=(f"{QUARANTINE}test_a_quarantined_checkpoint_takes_along_what_continues_it_and_nothing_else",),
    ),
    Mutant(
        name="a sequence that resumed from a wrong checkpoint gives its own to the tree",
        keeps="T10: sequences that run on quarantined text give nothing to the tree.",
        where="cache.transit:Quarantine.quarantine",
        old="allocation.untrusted_from = _1",
        new="pass",
        tests=(f"{QUARANTINE}test_a_sequence_that_runs_on_quarantined_text_leaves_nothing",),
    ),
    Mutant(
        name="a wrong checkpoint that somebody reads is never freed",
        keeps="A quarantined checkpoint is freed once nobody reads it.",
        where="cache.transit:Quarantine.release_condemned",
        old="self.reclaimer.drop_forgotten(node)",
        new="pass",
        tests=(f"{QUARANTINE}test_a_checkpoint_that_a_sequence_reads_is_freed_once_it_has_read_it",),
    ),
    Mutant(
        name="an audit evicts a checkpoint that sequences resume from",
        keeps="T11: only checkpoints from which nobody has resumed give way to an audit.",
        where="cache.reclaimer:Reclaimer.displace_unused",
        old="node.pin is not None or node.lineage is None or node.lineage.resumed",
        new="node.pin is not None",
        tests=(f"{QUARANTINE}test_audits_displace_what_nobody_has_resumed_from_and_nothing_else",),
    ),
    Mutant(
        name="a wrong state is found and nothing follows from it",
        keeps="A state beyond the bound is quarantined.",
        where="audits.resumed_answers:ResumedAnswers._compare_states",
        old="largest <= self.bounds.states",
        new="True",
        tests=(FOUND,),
    ),
    Mutant(
        name="the audit looks at the checkpoint that was resumed from and not at its ancestors",
        keeps="The checkpoint that is named is the first wrong one of the lineage.",
        where="audits.pending_audit:PendingAudit.begin",
        old="islice(_1, MOST_CHECKPOINTS)",
        new="islice(_1, 1)",
        tests=(
            f"{AUDITS}test_the_wrong_ancestor_is_found_through_an_answer_that_resumed_from_its_descendant",
        ),
    ),
    Mutant(
        name="scores beyond the bound are taken for rounding",
        keeps="An answer whose checkpoint is gone is still compared by its scores.",
        where="audits.resumed_answers:ResumedAnswers._compare_scores",
        old="distance <= self.bounds.scores_of(_1)",
        new="True",
        tests=(f"{AUDITS}test_wrong_scores_are_found_when_the_checkpoint_itself_is_gone",),
    ),
    Mutant(
        name="an audit keeps its memory while requests run",
        keeps="An audit gives way to a request.",
        where="stepping.core:EngineCore._interrupt_audit",
        old="self.audits.interrupt()",
        new="pass",
        tests=(GIVES_WAY,),
    ),
    Mutant(
        name="an audit that is interrupted leaks its slot",
        keeps="The ledger balances after an interrupted audit.",
        where="audits.resumed_answers:ResumedAnswers.interrupt",
        old="self._end(audit)",
        new="self._current = None",
        tests=(GIVES_WAY,),
    ),
    Mutant(
        name="clients get log-probabilities because their answer is audited",
        keeps="An audit changes nothing that a client sees.",
        where="sequences.served_scores:ServedScores.take",
        old="score if requested else None",
        new="score",
        tests=(f"{AUDITS}test_an_audited_answer_is_the_one_that_is_served_without_audits",),
    ),
    Mutant(
        name="a tier keeps the copy of a wrong checkpoint",
        keeps="A withdrawn bundle is found by nobody.",
        where="mamba_tier.bundle_store:BundleStore.withdraw",
        old="tier.drop(record)",
        new="pass",
        tests=(f"{STORE}test_a_withdrawn_bundle_is_gone_with_what_needs_its_blocks_and_the_rest_stays",),
    ),
    Mutant(
        name="a wrong bundle is stored although it was withdrawn meanwhile",
        keeps="What waits for the writer can be withdrawn, too.",
        where="mamba_tier.store_writer:StoreWriter._publish",
        old="bundle.wrong",
        new="False",
        tests=(f"{STORE}test_a_bundle_that_is_withdrawn_before_it_is_stored_is_never_found",),
    ),
    Mutant(
        name="a wrong answer leaves drafts on",
        keeps="A divergence switches speculation off until a person acts.",
        where="audits.resumed_answers:ResumedAnswers._diverge",
        old="self._drafts.switch_off(_1)",
        new="pass",
        tests=(DRAFTED,),
    ),
    Mutant(
        name="drafts that were switched off are proposed",
        keeps="A divergence switches speculation off until a person acts.",
        where="stepping.speculation:DraftSwitch.propose",
        old="self.source.propose(decodes) if self.is_on else {}",
        new="self.source.propose(decodes)",
        tests=(DRAFTED,),
    ),
    Mutant(
        name="an answer with drafts is audited only if it resumed",
        keeps="Audits take answers with accepted drafts, too.",
        where="sequences.served_scores:ServedScores.audits",
        old="self.accepted > 0",
        new="False",
        tests=(DRAFTED,),
    ),
)
