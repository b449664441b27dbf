"""Timeline of a traced sequence, in steps of a real scheduler."""

from mamba_server.engine.sequences.schedule import MAX_BESIDE
from mamba_server.engine.sequences.timeline import MAX_PIECES
from mamba_server.wire import AddRequest, PrefillTiming, SamplingParams, SequenceDelta
from step_load import LoadSetup, StepLoad

SAMPLED = "00-" + "a" * 32 + "-" + "{:016x}" + "-01"


def add(load: StepLoad, name: str, prompt: int, outputs: int, traceparent: str = "", salt: str = "") -> None:
    params = SamplingParams(max_tokens=outputs, ignore_eos=True)
    token_ids = [6 + place % 900 for place in range(prompt)]
    request = AddRequest(name, token_ids, params, traceparent=traceparent, cache_salt=salt)  # type: ignore[arg-type]
    assert load.core.add(request) is None


def run(load: StepLoad, before_step: object = None) -> list[SequenceDelta]:
    deltas: list[SequenceDelta] = []
    for number in range(5000):
        if callable(before_step):
            before_step(number)
        deltas += load.core.step()
        if load.core.idle:
            return deltas
    raise AssertionError("the engine hangs")


def pieces_of(deltas: list[SequenceDelta], name: str) -> list[PrefillTiming]:
    return [
        piece
        for delta in deltas
        if delta.request_id == name and delta.timeline is not None
        for piece in delta.timeline.pieces
    ]


def test_a_prompt_s_pieces_follow_each_other_and_come_with_its_first_token() -> None:
    load = StepLoad(LoadSetup(step_tokens=128))
    add(load, "one", 1000, 5, SAMPLED.format(1))
    deltas = run(load)
    pieces = pieces_of(deltas, "one")
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == 1000
    assert all(piece.began <= piece.ended for piece in pieces)
    assert [piece.step for piece in pieces] == sorted({piece.step for piece in pieces})
    assert {(piece.sequences, piece.tokens) for piece in pieces[:-1]} == {(1, 128)}
    assert [delta.timeline is not None for delta in deltas] == [True, *[False] * (len(deltas) - 1)]


def test_who_is_not_traced_tells_nothing_and_is_nobody_s_company() -> None:
    load = StepLoad(LoadSetup())
    add(load, "plain", 300, 4)
    add(load, "unsampled", 300, 4, SAMPLED.format(1)[:-2] + "00", "b")
    add(load, "traced", 300, 4, SAMPLED.format(2), "c")
    deltas = run(load)
    assert [delta for delta in deltas if delta.request_id == "plain" and delta.timeline is not None] == []
    assert [piece.beside for piece in pieces_of(deltas, "traced")] == [()]
    assert [piece.beside for piece in pieces_of(deltas, "unsampled")] == [(SAMPLED.format(2),)]


def test_company_is_told_up_to_a_bound() -> None:
    load = StepLoad(LoadSetup())
    for number in range(MAX_BESIDE + 3):
        add(load, f"r{number}", 64, 2, SAMPLED.format(number + 1), f"s{number}")
    beside = [piece.beside for piece in pieces_of(run(load), "r0")]
    assert [len(each) for each in beside] == [MAX_BESIDE]
    assert SAMPLED.format(1) not in beside[0]


def test_of_a_very_long_prompt_the_last_piece_stands_for_the_rest() -> None:
    load = StepLoad(LoadSetup(slabs=120, step_tokens=64))
    add(load, "long", 64 * (MAX_PIECES + 20), 2, SAMPLED.format(1))
    pieces = pieces_of(run(load), "long")
    assert len(pieces) == MAX_PIECES
    assert sum(piece.steps for piece in pieces) == MAX_PIECES + 20
    assert (pieces[-1].start, pieces[-1].stop) == (pieces[-2].stop, 64 * (MAX_PIECES + 20))


def test_checkpoints_are_told_where_they_were_written() -> None:
    load = StepLoad(LoadSetup(prefix_caching=True, strategy="ExtraBuffer"))
    add(load, "one", 600, 40, SAMPLED.format(1))
    deltas = run(load)
    depths = [depth for piece in pieces_of(deltas, "one") for depth in piece.checkpoints]
    assert depths
    assert depths == sorted(depths)
    assert max(depths) <= 600
    written = [depth for delta in deltas if delta.timeline for depth in delta.timeline.checkpoints]
    assert written
    assert all(600 < depth <= 640 and depth % 16 == 0 for depth in written)


def test_a_preempted_sequence_tells_that_it_is_computed_anew() -> None:
    load = StepLoad(LoadSetup())
    add(load, "one", 200, 30, SAMPLED.format(1))

    def preempt(number: int) -> None:
        if number == 8:
            load.scheduler.preempt(load.core.sequences["one"][0])

    pieces = pieces_of(run(load, preempt), "one")
    assert [piece.preemptions for piece in pieces] == [0, 1]
    assert pieces[1].start == 0
    assert pieces[1].stop > 200
