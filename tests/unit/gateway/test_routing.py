"""Routing: filter, score, pick."""

from random import Random

import pytest

from mamba_gateway.routing.decision import (
    NoCandidate,
    available,
    cheapest,
    choose,
    drop_reasons,
    no_such_model,
    serving,
)
from mamba_gateway.routing.scoring import RoutingRequest

ASK = RoutingRequest("m")


def test_only_ready_endpoints_that_stay_are_available(endpoint) -> None:
    well = endpoint("well")
    others = [
        endpoint("a", ready=False),
        endpoint("b", draining=True),
        endpoint("c", ready=False, draining=True),
    ]
    assert available([*others, well]) == [well]


def test_an_engine_that_goes_is_chosen_while_nothing_else_is_ready(endpoint) -> None:
    going, loading = endpoint("going", draining=True), endpoint("loading", ready=False)
    other = endpoint("other", models=frozenset({"z"}))
    assert choose([going, loading, other], ASK, Random(0)).endpoint is going
    assert drop_reasons([going, loading, other], ASK) == {
        "loading": "not ready",
        "other": "serves another model",
    }


def test_an_endpoint_serves_its_models_and_one_of_unknown_models_serves_any(endpoint) -> None:
    one, two, unknown = endpoint("1"), endpoint("2", models=frozenset({"z"})), endpoint("3", models=None)
    assert serving([one, two, unknown], RoutingRequest("z")) == [two, unknown]
    assert serving([one, two, unknown], RoutingRequest(None)) == [one, two, unknown]


def test_an_endpoint_that_was_tried_is_left_out(endpoint) -> None:
    one, two = endpoint("1", models=None), endpoint("2", models=None)
    request = RoutingRequest("m", ("http://1", "http://gone"))
    assert choose([one, two], request, Random(0)).endpoint is two


def test_an_engine_that_was_full_is_chosen_where_the_proxy_allows_no_other(endpoint) -> None:
    full, idle = endpoint("full", avoided=True), endpoint("idle")
    assert choose([full, idle], ASK, Random(0)).endpoint is idle
    assert drop_reasons([full, idle], ASK) == {"full": "full lately"}
    restricted = RoutingRequest("m", allowed_addresses=frozenset({"full"}))
    assert choose([full, idle], restricted, Random(0)).endpoint is full
    assert drop_reasons([full, idle], restricted) == {"idle": "the proxy does not ask for it"}


def test_load_counts_ours_exactly_and_others_as_reported(endpoint) -> None:
    # Seven were there when it reported, four of them ours; by now we have one left.
    assert endpoint("a", running=5, waiting=2, in_flight_at_report=4, in_flight=1).load == 4
    # A report may lag behind what we sent: never less than ours.
    assert endpoint("a", running=0, in_flight_at_report=3, in_flight=3).load == 3


def test_a_tie_is_broken_evenly_and_repeatably(endpoint) -> None:
    totals = [0.75, 0.75, 0.75, 0.75, 0.7500001]
    picks = [cheapest(totals, rng) for rng in [Random(1)] for _ in range(400)]
    assert picks == [cheapest(totals, rng) for rng in [Random(1)] for _ in range(400)]
    assert all(70 < picks.count(n) < 130 for n in range(4))
    assert 4 not in picks


def test_a_picker_without_endpoints_refuses() -> None:
    with pytest.raises(ValueError, match="empty"):
        cheapest([], Random(0))


def test_the_least_loaded_of_those_that_fit_is_chosen(endpoint) -> None:
    ends = [
        endpoint("busy", running=9),
        endpoint("idle-but-leaving", draining=True),
        endpoint("idle-but-other", models=frozenset({"z"})),
        endpoint("right", running=2),
        endpoint("ours", in_flight=3),
    ]
    decision = choose(ends, ASK, Random(0))
    assert decision.endpoint is ends[3]
    assert decision.reason == "load"
    assert [cost.endpoint for cost in decision.costs()] == [ends[0], ends[3], ends[4]]


def test_who_was_left_out_is_told_with_the_reason(endpoint) -> None:
    ends = [
        endpoint("leaving", draining=True),
        endpoint("loading", ready=False),
        endpoint("other", models=frozenset({"z"})),
        endpoint("tried"),
        endpoint("right"),
    ]
    ask = RoutingRequest("m", tried=("http://tried",))
    assert choose(ends, ask, Random(0)).reason == "only"
    assert drop_reasons(ends, ask) == {
        "leaving": "draining",
        "loading": "not ready",
        "other": "serves another model",
        "tried": "tried before",
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (None, NoCandidate.NONE_KNOWN),
        ({"ready": False}, NoCandidate.NONE_READY),
        ({"draining": True, "ready": False}, NoCandidate.NONE_READY),
        ({"models": frozenset({"z"})}, NoCandidate.MODEL_UNKNOWN),
        ({"models": None, "ready": False}, NoCandidate.NONE_READY),
    ],
)
def test_no_choice_says_why(changes, why, endpoint) -> None:
    ends = [] if changes is None else [endpoint("a", **changes)]
    assert choose(ends, ASK, Random(0)) is why


def test_a_model_whose_engines_are_away_is_not_unknown(endpoint) -> None:
    ends = [endpoint("other", models=frozenset({"z"})), endpoint("away", ready=False)]
    assert choose(ends, ASK, Random(0)) is NoCandidate.NONE_READY


def test_all_tried_is_told_apart_from_none_ready(endpoint) -> None:
    assert (
        choose([endpoint("a")], RoutingRequest("m", tried=("http://a",)), Random(0)) is NoCandidate.ALL_TRIED
    )


def test_who_asks_for_another_model_is_told_of_some_that_there_are() -> None:
    assert no_such_model("x" * 300) == f"the model '{'x' * 200}' does not exist here"
    assert no_such_model("x", ["a"]) == "the model 'x' does not exist here; 'a' is served"
    assert no_such_model("x", ["a", "b"]).endswith("; 'a', 'b' are served")
    assert no_such_model("x", [f"m{n}" for n in range(20)]).endswith("'m7' and 12 more are served")
