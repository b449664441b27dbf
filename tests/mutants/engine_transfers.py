"""Defects of an engine's transfers: it would answer from foreign bytes, or wait or keep memory for ever."""

from seeded import Mutant

ARRIVALS, HAND_OVER, TIERS = (
    f"tests/gates/test_{name}.py" for name in ("arrivals", "hand_over_matrix", "tiers")
)

MUTANTS = (
    Mutant(
        name="a state that did not arrive whole is installed",
        keeps="No byte that arrived is used before its source or its checksums said so.",
        where="mamba_server.engine.transfers.importer:Importer._finish",
        old="result.outcome",
        new='"valid"',
        tests=(ARRIVALS,),
    ),
    Mutant(
        name="memory that a reader may still write is free at once",
        keeps="Time never frees memory that a writer outside may still write.",
        where="mamba_server.engine.transfers.importer:Importer._give_up",
        old="self._cache.abandon(awaited.reception, writer_ended=False)",
        new="self._cache.abandon(awaited.reception, writer_ended=True)",
        tests=(ARRIVALS,),
    ),
    Mutant(
        name="a request waits for a state without a deadline",
        keeps="Whatever fails, a request is queued and computed.",
        where="mamba_server.engine.transfers.importer:Importer.poll",
        old="now >= awaited.deadline",
        new="False",
        tests=(TIERS,),
    ),
    Mutant(
        name="an aborted request leaves its reader running",
        keeps="An abort gives up the reception.",
        where="mamba_server.engine.transfers.engine_transfers:EngineTransfers.cancel",
        old="self._importer.cancel(request_id)",
        new="None",
        tests=(ARRIVALS,),
    ),
    Mutant(
        name="an export that nobody fetches stays locked",
        keeps="An unused export ends with its lease.",
        where="mamba_server.engine.transfers.exporter:Exporter.poll",
        old="self._leases.sweep()",
        new="[]",
        tests=("tests/integration/test_hand_over.py",),
    ),
    Mutant(
        name="a prompt is handed over with pieces of its own",
        keeps="Pieces end where they end at an engine that computes the whole prompt.",
        where="mamba_server.engine.stepping.request_limits:hand_over_depth",
        old="len(request.token_ids) - 1",
        new="len(request.token_ids)",
        tests=(HAND_OVER,),
    ),
    Mutant(
        name="a damaged record counts like a prompt that was never seen",
        keeps="A damaged record is a miss with the cause `corrupt`.",
        where="mamba_server.engine.transfers.importer:Importer._record",
        old='outcome == "corrupt"',
        new="False",
        tests=(TIERS,),
    ),
    Mutant(
        name="a stored state is read where another depth was expected",
        keeps="A prompt resumes from the state of its own depth.",
        where="mamba_server.engine.transfers.tier:Tier._offer",
        old="evicted.pages[first // self._page_size:]",
        new="evicted.pages[:len(evicted.pages) - first // self._page_size]",
        tests=(TIERS,),
    ),
    Mutant(
        name="an engine that has the prompt cached leaves the state that was computed for it locked",
        keeps="An export that is not read is given up at once.",
        where="mamba_server.engine.transfers.engine_transfers:EngineTransfers._give_up",
        old="fetch.export and self._peers is not None",
        new="False",
        tests=("tests/integration/test_hand_over.py", HAND_OVER),
    ),
    Mutant(
        name="a peer is asked whatever it costs",
        keeps="A state is fetched from a peer if it comes sooner than it is computed.",
        where="mamba_server.engine.transfers.engine_transfers:EngineTransfers._source",
        old="fetch.export or self._pays(fetch.depth, match.resumable, size)",
        new="True",
        tests=(ARRIVALS,),
    ),
    Mutant(
        name="credits ignore what already arrives",
        keeps="An engine offers the places that its plan counts.",
        where="mamba_planner.strategy:receptions_within",
        old="slots_of_sequences(0, receiving, slots_each) - receiving",
        new="0",
        tests=("tests/unit/planner/test_strategy.py", ARRIVALS),
    ),
    Mutant(
        name="an export ends while its reader waits for a place",
        keeps="A reader that waits renews the lease.",
        where="mamba_server.engine.transfers.importer:Importer.poll",
        old="awaited.source.waits()",
        new="None",
        tests=(ARRIVALS,),
    ),
)
