"""Properties of the gateway's pure parts: routing, event alignment, admission arithmetic."""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_edge.error_forms import DONE
from mamba_gateway.admission.admission import retry_after
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.probe import read_gauges
from mamba_gateway.errors import UpstreamLost
from mamba_gateway.prompt_prefix import DEPTHS, PromptPrefix
from mamba_gateway.relay.answer import EventAligner
from mamba_gateway.routing.decision import NoCandidate, choose
from mamba_gateway.routing.scoring import JITTER, RoutingRequest, RoutingWeights

budget = settings(max_examples=60)
counts = st.integers(0, 50)


SAYS = st.fixed_dictionaries(
    {
        "speed": st.none() | st.builds(EngineSpeed, st.floats(1, 1e6), st.floats(0, 1e-2), st.floats(0, 10)),
        "queued_tokens": st.none() | st.floats(0, 1e7),
        "room": st.none() | st.floats(0, 1e7),
        "service_seconds": st.floats(0, 1e4),
    }
)


@st.composite
def endpoints(draw: st.DrawFn, telling: bool = False) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(
            url=f"http://{number}",
            name=str(number),
            ready=draw(st.booleans()),
            draining=draw(st.booleans()),
            models=draw(st.sampled_from([None, frozenset({"m"}), frozenset({"z"}), frozenset({"m", "z"})])),
            running=draw(counts),
            waiting=draw(counts),
            kv_usage=0.0,
            in_flight=draw(counts),
            in_flight_at_report=draw(counts),
            **(draw(SAYS) if telling else {}),
        )
        for number in range(draw(st.integers(0, 8)))
    )


asks = st.builds(
    RoutingRequest,
    st.sampled_from([None, "m", "z", "q"]),
    st.lists(st.integers(0, 8).map("http://{}".format), max_size=3).map(tuple),
)


@budget
@given(endpoints(), asks, st.integers())
def test_the_choice_is_always_one_that_fits_and_none_that_fits_is_less_loaded(ends, ask, seed) -> None:
    chosen = choose(ends, ask, Random(seed))
    serving = [
        end
        for end in ends
        if end.ready and (ask.model is None or end.models is None or ask.model in end.models)
    ]
    # Those that go take requests as long as none stays.
    staying = [end for end in serving if not end.draining] or serving
    fits = [end for end in staying if end.url not in ask.tried]
    if isinstance(chosen, NoCandidate):
        assert fits == []
    else:
        assert chosen.endpoint in fits
        assert chosen.endpoint.load <= (1 + JITTER) * min(end.load for end in fits)


full_asks = st.builds(
    RoutingRequest,
    st.sampled_from([None, "m", "z"]),
    st.just(()),
    st.integers(0, 1_000_000),
    st.dictionaries(st.integers(0, 8).map(str), st.integers(0, 2_000_000)),
    st.dictionaries(st.integers(0, 8).map(str), st.integers(0, 2_000_000)),
    st.none() | st.integers(0, 2**64 - 1),
)


@budget
@given(endpoints(telling=True), full_asks, st.floats(0, 100), st.floats(0, 100), st.integers())
def test_whatever_engines_say_one_that_fits_is_chosen_and_none_is_cheaper(
    ends, ask, prefix, load, seed
) -> None:
    decision = choose(ends, ask, Random(seed), RoutingWeights(prefix, load))
    if isinstance(decision, NoCandidate):
        return
    assert decision.endpoint.ready
    assert not decision.endpoint.draining or all(cost.endpoint.draining for cost in decision.costs())
    assert all(cost.total >= 0 for cost in decision.costs())
    assert decision.cost.total <= min(cost.total for cost in decision.costs()) + 1e-6


@budget
# A subnormal weight times some milliseconds is 0: a charge that is there in name only.
@given(
    endpoints(telling=True), full_asks, st.floats(0, 100, allow_subnormal=False), st.floats(0, 100),
    st.booleans(), st.integers(),
)  # fmt: skip
def test_what_a_choice_goes_by_is_what_its_explanation_adds_up_to(
    ends, ask, prefix, load, sure, seed
) -> None:
    ask = msgspec.structs.replace(ask, authoritative=sure)
    decision = choose(ends, ask, Random(seed), RoutingWeights(prefix, load))
    if not isinstance(decision, NoCandidate):
        comparison = decision.comparison
        costs = comparison.costs()
        assert comparison.totals() == [cost.total for cost in costs]
        assert comparison.charges == any(cost.apart > 0 for cost in costs)
        assert decision.cost in costs


@budget
@given(st.lists(st.integers(0, 60_000), max_size=3000), st.integers(0, 3000), st.text(max_size=3))
def test_prompts_have_those_digests_in_common_up_to_which_they_are_the_same(ids, parting, salt) -> None:
    other = [*ids[:parting], *(token + 1 for token in ids[parting:])]
    one, two = PromptPrefix.of(ids, salt), PromptPrefix.of(other, salt)
    common = min(len(ids), parting)
    shared = [depth for (depth, a), (_, b) in zip(one.digests, two.digests, strict=True) if a == b]
    assert shared == [depth for depth in DEPTHS if depth <= common]
    assert not {d for _, d in one.digests} & {d for _, d in PromptPrefix.of(ids, salt + "x").digests}


@budget
@given(endpoints(), asks, st.integers())
def test_the_same_snapshot_and_seed_give_the_same_choice(ends, ask, seed) -> None:
    assert choose(ends, ask, Random(seed)) == choose(ends, ask, Random(seed))


pieces = st.lists(
    st.sampled_from([b"data: x", b"\n", b"\n\n", b"\r\n\r\n", b"\r", b": c", b"\xc3", b"\xa9"]), max_size=30
)


@budget
@given(pieces)
def test_alignment_changes_no_byte_and_cuts_only_behind_events(chunks) -> None:
    aligner = EventAligner()
    passed = [aligner.feed(chunk) for chunk in chunks]
    assert all(out == b"" or out.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) for out in passed)
    assert b"".join(passed) + aligner.flush() == b"".join(chunks)


@budget
@given(pieces)
def test_an_error_event_always_starts_on_a_fresh_line(chunks) -> None:
    aligner = EventAligner()
    passed = b"".join(aligner.feed(chunk) for chunk in chunks)
    error = UpstreamLost("x")
    whole = passed + aligner.terminate(error)
    assert whole.endswith((error).event() + DONE)
    before = whole.removesuffix((error).event() + DONE)
    assert before == b"" or before.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))


@budget
@given(st.integers(0, 10**6), st.integers(1, 10**4), st.floats(0, 10**6))
def test_retry_after_is_a_whole_second_within_a_minute(queued, places, service) -> None:
    seconds = retry_after(queued, places, service)
    assert seconds == int(seconds)
    assert 1 <= seconds <= 60


@budget
@given(st.text(max_size=300))
def test_no_text_breaks_the_reader_of_metrics(text) -> None:
    assert isinstance(read_gauges(text), dict)
