"""Quarantine: a wrong checkpoint is withdrawn with all that continues it; audits get only unwanted memory."""

import pytest

from cache_bench import CacheBench, ids
from mamba_server.cache.node import Provenance
from mamba_server.cache.sequence_allocation import SequenceAllocation

TEXT, LONGER, OTHER = ids(range(1, 18)), ids(range(1, 34)), ids(range(101, 118))


def serve(bench: CacheBench, name: str, tokens: object) -> None:
    """Serve a prompt as the engine does: the sequence says whose it is."""
    allocation = running(bench, name, tokens)
    bench.cache.retire(allocation, lambda: tokens)  # type: ignore[arg-type,return-value]
    bench.check()


def running(bench: CacheBench, name: str, tokens: object) -> SequenceAllocation:
    allocation = bench.admit(tokens)  # type: ignore[arg-type]
    assert allocation is not None
    allocation.begin_lineage(name)
    bench.commit(allocation, tokens, bench.launch(allocation, len(tokens)))  # type: ignore[arg-type]
    return allocation


@pytest.mark.parametrize("policy", ["LRU", "RecomputeCost"])
def test_a_quarantined_checkpoint_takes_along_what_continues_it_and_nothing_else(policy: str) -> None:
    bench = CacheBench.make(slabs=40, policy=policy)
    for name, text in (("a", TEXT), ("b", LONGER), ("c", OTHER)):
        serve(bench, name, text)
    depth = min(bench.checkpoints(TEXT))
    withdrawn = bench.cache.quarantine(TEXT[:depth], "")
    bench.check()
    assert {len(each.token_ids) for each in withdrawn} >= {16, 32}
    assert {each.lineage.provenance.request_id for each in withdrawn if each.lineage} == {"a", "b"}
    assert not bench.checkpoints(LONGER)
    assert bench.checkpoints(OTHER)
    assert bench.cache.counters.quarantined == len(withdrawn)


def test_the_same_prompt_of_another_salt_stays() -> None:
    bench = CacheBench.make(slabs=40)
    bench.serve(TEXT, salt="x")
    serve(bench, "a", TEXT)
    bench.cache.quarantine(TEXT[:4], "")
    assert bench.cache.match(LONGER, "x", bench.step + 1).resumable
    assert not bench.cache.match(LONGER, "", bench.step + 1).resumable


@pytest.mark.parametrize("policy", ["LRU", "RecomputeCost"])
def test_a_sequence_that_runs_on_quarantined_text_leaves_nothing(policy: str) -> None:
    bench = CacheBench.make(slabs=40, policy=policy)
    serve(bench, "a", TEXT)
    allocation = running(bench, "b", LONGER)
    bench.cache.quarantine(TEXT[:16], "")
    bench.decode(allocation)
    bench.commit(allocation, LONGER)
    bench.cache.retire(allocation, lambda: LONGER)
    bench.cache.release_condemned()
    bench.check()
    assert bench.checkpoints(LONGER) == [8]
    assert bench.cache.match(LONGER, "", bench.step + 1).kv_depth == 8, "deeper pages may be wrong, too"


def test_a_checkpoint_that_a_sequence_reads_is_freed_once_it_has_read_it() -> None:
    bench = CacheBench.make(slabs=40)
    serve(bench, "a", TEXT)
    allocation = bench.admit(LONGER)
    assert allocation is not None
    bench.launch(allocation, len(LONGER))
    bench.cache.quarantine(TEXT[:16], "")
    assert bench.cache.condemned == 1
    bench.cache.release_condemned()
    assert bench.cache.condemned == 1
    bench.commit(allocation, LONGER)
    bench.cache.release_condemned()
    bench.check()
    assert bench.cache.condemned == bench.cache.tree.forgotten == 0
    assert bench.checkpoints(TEXT) == [8]


def test_a_prefix_of_which_nothing_is_cached_can_be_quarantined() -> None:
    bench = CacheBench.make()
    assert bench.cache.quarantine(TEXT[:16], "") == []
    serve(bench, "a", TEXT)
    assert bench.checkpoints(TEXT)


def test_a_lineage_counts_who_resumed_and_names_what_a_checkpoint_was_computed_from() -> None:
    bench = CacheBench.make(slabs=40)
    serve(bench, "a", TEXT)
    serve(bench, "b", LONGER)
    node = bench.cache.tree.complete_checkpoints(LONGER, "", bench.step + 1)[0]
    assert node.lineage is not None
    assert [each.provenance for each in node.lineage.chain()] == [
        Provenance("device", "b"), Provenance("device", "a"),
    ]  # fmt: skip
    assert [each.resumed for each in node.lineage.chain()] == [0, 1]


def test_a_received_checkpoint_says_where_it_comes_from() -> None:
    bench = CacheBench.make()
    reception = bench.cache.receive(TEXT[:16], "")
    assert reception is not None
    bench.cache.confirm(reception)
    source = Provenance("hand_over", "r", "10.0.0.7:7000 life")
    assert bench.cache.install(reception, bench.step + 1, source)
    [node] = bench.cache.tree.complete_checkpoints(TEXT, "", bench.step + 1)
    assert node.lineage is not None
    assert (node.lineage.provenance, node.lineage.depth) == (source, 16)
    assert bench.cache.slot_of(TEXT[:16], "", node.lineage) == node.slot
    serve(bench, "other", OTHER)
    other = bench.cache.tree.complete_checkpoints(OTHER, "", bench.step + 1)[0].lineage
    assert other is not None
    assert bench.cache.slot_of(TEXT[:16], "", other) == 0


# --- memory of audits ----------------------------------------------------------------------------------


def fill(bench: CacheBench) -> None:
    """Serve texts until the arena is full."""
    for first in range(200, 500, 20):
        serve(bench, f"f{first}", ids(range(first, first + 17)))


def wanted(bench: CacheBench) -> set[int]:
    """Return the checkpoints that somebody has resumed from."""
    nodes = (node for node in bench.cache.tree.walk() if node.slot)
    return {id(node.lineage) for node in nodes if node.lineage is not None and node.lineage.resumed}


def test_audits_displace_what_nobody_has_resumed_from_and_nothing_else() -> None:
    bench = CacheBench.make(slabs=14, interval=64)
    fill(bench)
    serve(bench, "a", TEXT)
    serve(bench, "b", LONGER)
    before, unwanted = wanted(bench), bench.cache.counters.evicted
    assert before
    held = []
    while (allocation := bench.cache.admit_audit(ids(range(900, 916)), "")) is not None:
        held.append(allocation)
        bench.check()
    assert bench.cache.counters.evicted > unwanted
    assert wanted(bench) == before
    for allocation in held:
        bench.cache.retire(allocation, lambda: TEXT[:0])
    bench.check()


def test_what_an_audit_computes_is_given_to_nobody() -> None:
    bench = CacheBench.make(slabs=40)
    allocation = bench.cache.admit_audit(TEXT, "")
    assert allocation is not None
    bench.step += 1
    bench.cache.launch(allocation.row, 16, bench.step)
    bench.cache.advance(bench.step)
    bench.cache.retire(allocation, lambda: TEXT[:0])
    bench.check()
    assert not list(bench.cache.tree.walk())
    assert bench.cache.account().slots_free == 39
