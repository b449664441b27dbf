"""Engines needed for a trace: the search, the choice among candidates, and the simulations."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.cache.block_trace import generated as blocks

from mamba_cli.bench.traces import Arrival
from mamba_cli.errors import InvalidInput
from mamba_cli.fleet.engine import cache_of
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.prompt_blocks import BLOCK
from mamba_cli.fleet.size_search.chart import chart
from mamba_cli.fleet.size_search.gpu import KINDS, Gpu, chosen
from mamba_cli.fleet.size_search.roofline import profile_of
from mamba_cli.fleet.size_search.sizing import (
    FleetCandidate,
    FleetResult,
    SizingRequest,
    SizingResult,
    best_share,
    cheapest,
    size,
    smallest,
)
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, TraceWorkload, busiest
from mamba_planner import Constraints, Device, plan
from mamba_planner import constraints as planner_constraints
from mamba_planner.families.registry import model_config_from_hf
from mamba_settings.engine_settings import EngineSettings

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
KIND = {gpu.name: gpu for gpu in KINDS}


def model(name: str = "nemotron-nano-9b-v2") -> object:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()), name)


def asked(requests: int = 84, every: float = 0.05) -> RequestStream:
    arrivals = [
        replace(arrival, at=number * every)
        for number, arrival in enumerate(blocks(requests, documents=6, depth=(4, 16)))
    ]
    return RequestStream(TraceWorkload("shared", BLOCK, arrivals), True)


def question(gpus: tuple[Gpu, ...], **changed: object) -> SizingRequest:
    made = SizingRequest(
        model(), Constraints(), 17_800_000_000, planner_constraints.Workload(), asked(), Slo(2.0, 0.1), gpus,
        most=24,
    )  # fmt: skip
    return replace(made, **changed)


EXTRA = Constraints(strategy="ExtraBuffer")


@pytest.fixture(scope="module")
def of_two_kinds() -> SizingResult:
    return size(question((KIND["A100"], KIND["H100"]), constraints=EXTRA))


@pytest.mark.parametrize("most", [1, 5, 64])
@pytest.mark.parametrize("start", [1, 3, 8, 100])
def test_the_smallest_number_is_found_from_wherever_the_search_starts(start: int, most: int) -> None:
    for least in range(1, 80):
        looked: list[int] = []

        def attains(n: int, least: int = least, looked: list[int] = looked) -> bool:
            looked.append(n)
            return n >= least

        assert smallest(attains, start, most) == (least if least <= most else None)
        assert len(looked) == len(set(looked))
        assert max(looked) <= most


def test_a_faster_kind_takes_fewer_and_a_tighter_promise_takes_more(of_two_kinds: SizingResult) -> None:
    slow, fast = of_two_kinds.candidates
    assert slow.served is not None
    assert fast.served is not None
    assert fast.served.engines < slow.served.engines
    assert of_two_kinds.chosen is fast
    tight = size(question((KIND["H100"],), constraints=EXTRA, slo=Slo(0.35, 0.1))).candidates[0]
    assert tight.served is None or tight.served.engines > fast.served.engines


def test_the_smallest_fleet_attains_the_goal_and_one_engine_less_does_not(of_two_kinds: SizingResult) -> None:
    each = of_two_kinds.candidates[0]
    assert each.served is not None
    assert each.served.engines > 1
    assert each.served.attainment >= 0.95
    below = {run.engines: run.attainment for run in each.runs}
    assert below[each.served.engines - 1] < 0.95
    assert each.doubled is not None
    assert each.doubled.attainment < each.served.attainment
    assert of_two_kinds.chosen is not None
    assert of_two_kinds.chosen.served is not None
    assert of_two_kinds.engines_doubled is not None
    assert of_two_kinds.engines_doubled > of_two_kinds.chosen.served.engines


def test_the_same_question_has_the_same_answer() -> None:
    asking = question((KIND["H100"],), constraints=EXTRA, stream=asked(28))
    answer = size(asking)
    assert answer.chosen is not None
    assert size(asking) == answer


def test_every_strategy_is_a_candidate_unless_one_is_set() -> None:
    """Whether it attains the goal or not: one engine, which is soon simulated, does not."""
    every = size(question((KIND["H100"],), most=1))
    assert {each.strategy for each in every.candidates} == {"NoBuffer", "ExtraBuffer", "ExtraBufferLazy"}
    one = size(question((KIND["H100"],), constraints=Constraints(strategy="NoBuffer"), most=1))
    assert [each.strategy for each in one.candidates] == ["NoBuffer"]


def test_a_strategy_that_holds_more_slots_runs_fewer_sequences() -> None:
    """A simulated engine has the slots of its strategy, with overlap those of overlap."""
    slots = {}
    for strategy in ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer"):
        constraints = Constraints(strategy=strategy)
        planned = plan(model(), constraints, Device("cuda", 80 << 30), 17_800_000_000)
        cache = cache_of(
            profile_of(model(), planned, constraints, KIND["H100"]), BLOCK, 8192, prefix_caching=True
        )
        slots[strategy] = cache.strategy.slots_per_sequence
        assert planned.slots_per_sequence == slots[strategy]
    assert slots == {"NoBuffer": 1, "ExtraBufferLazy": 2, "ExtraBuffer": 3}


@pytest.mark.parametrize(("page", "interval"), [(16, 256), (32, 1024)])
def test_a_planned_engine_has_the_pages_and_checkpoints_of_the_product_and_not_the_blocks_of_the_trace(
    page: int, interval: int
) -> None:
    constraints = Constraints(strategy="NoBuffer", page_size=page, track_interval=interval)
    planned = plan(model(), constraints, Device("cuda", 80 << 30), 17_800_000_000)

    made = profile_of(model(), planned, constraints, KIND["H100"])
    cache = cache_of(made, BLOCK, 8192, prefix_caching=True)

    assert (cache.page_size, cache.track_interval) == (page, interval) != (BLOCK, BLOCK)


def test_checkpoints_far_apart_let_less_of_a_prompt_be_resumed() -> None:
    """Documents of four to sixteen blocks that later requests ask again."""

    def resumed(interval: int) -> float:
        constraints = Constraints(strategy="NoBuffer", track_interval=interval)
        found = size(question((KIND["H100"],), constraints=constraints)).candidates[0]
        assert found.served is not None
        return found.served.hit_rate

    assert resumed(256) > resumed(4096)


@pytest.mark.parametrize("tokens_per_state", [0, 64, 700, 4096, 8758])
def test_rounding_to_pages_costs_little_memory_however_small_a_state_is(tokens_per_state: int) -> None:
    profile = EngineProfile(
        name="test", origin="assumed", prefill_tokens_per_second=1000, step_seconds=0.01,
        sequence_seconds=0.0, max_running=8, slabs=40, tokens_per_state=tokens_per_state,
    )  # fmt: skip
    cache = cache_of(profile, BLOCK, 4096, prefix_caching=True)
    held = cache.arena.pages_per_slab * cache.page_size
    assert tokens_per_state * 7 / 8 <= held <= tokens_per_state


def test_without_prefix_caching_nothing_is_resumed(of_two_kinds: SizingResult) -> None:
    with_cache = of_two_kinds.candidates[1]
    without = size(
        question((KIND["H100"],), constraints=Constraints(strategy="ExtraBuffer", prefix_caching=False))
    )
    assert with_cache.served is not None
    assert with_cache.served.hit_rate > 0.3
    assert without.candidates[0].served is not None
    assert without.candidates[0].served.hit_rate == 0.0


def test_what_cannot_serve_says_why() -> None:
    small, slow = replace(KIND["L4"], memory=16 << 30), replace(KIND["L4"], flops=1e12)
    found = size(question((small, slow), constraints=Constraints(strategy="NoBuffer")))
    assert "does not fit" in (found.candidates[0].why_not or "")
    assert "idle engine" in (found.candidates[1].why_not or "")
    assert found.chosen is None
    few = size(question((KIND["A100"],), constraints=Constraints(strategy="NoBuffer"), most=1))
    assert few.candidates[0].why_not is not None
    assert few.candidates[0].runs
    assert few.chosen is None


@pytest.mark.parametrize("limit", [None, 4096])
def test_a_request_that_engines_refuse_was_not_served_in_time(limit: int | None) -> None:
    """Since no memory holds it, or since it is longer than the model may be asked."""
    arrivals = [Arrival(float(number), 1000, 5, (2 * number, 2 * number + 1)) for number in range(20)]
    long = 4_000_000 if limit is None else 5000
    for number in (2, 9, 15):
        ids = tuple(range(9000, 9000 + long // BLOCK + 1))
        arrivals[number] = Arrival(float(number), long, 1, ids)
    whole = RequestStream(TraceWorkload("w", BLOCK, arrivals), True)
    found = size(
        question((KIND["H100"],), stream=whole, slo=Slo(500.0, 1.0),
                 most=1, constraints=Constraints(strategy="NoBuffer", max_model_len=limit))
    )  # fmt: skip
    assert found.chosen is None
    each = found.candidates[0]
    assert "85%" in (each.why_not or "")
    kept = [arrival for arrival in arrivals if arrival.input_tokens < long]
    assert size(
        question((KIND["H100"],), stream=RequestStream(TraceWorkload("w", BLOCK, kept), True),
                 slo=Slo(500.0, 1.0),
                 most=1, constraints=Constraints(strategy="NoBuffer", max_model_len=limit))
    ).chosen  # fmt: skip


def test_a_model_without_attention_is_simulated_too() -> None:
    found = size(
        question((KIND["H100"],), model=model("mamba2-2.7b"), weights=5_600_000_000,
                 constraints=Constraints(strategy="NoBuffer"))
    )  # fmt: skip
    assert found.chosen is not None


def test_the_bound_of_an_idle_engine_is_never_below_what_is_attained(of_two_kinds: SizingResult) -> None:
    asking = question((KIND["H100"],), constraints=EXTRA)
    planned = plan(asking.model, asking.constraints, Device("cuda", KIND["H100"].memory), asking.weights)
    profile = profile_of(asking.model, planned, asking.constraints, KIND["H100"])
    tighter = {slo: size(replace(asking, slo=slo)).candidates[0] for slo in (Slo(0.5, 0.1),)}
    for slo, ran in {**tighter, asking.slo: of_two_kinds.candidates[1]}.items():
        share = best_share(asking.stream, profile, planned.max_model_len, slo)
        assert all(run.attainment <= share for run in ran.runs)


def candidate(kind: str, engines: int, twice: float, price: float | None = None) -> FleetCandidate:
    run = FleetResult(engines, 0.96, 0.5, 0.1, 0.2)
    return FleetCandidate(
        replace(KIND[kind], price=price), "ExtraBuffer", None, run, replace(run, attainment=twice), (run,)
    )


def test_the_cheapest_is_chosen_by_price_or_by_number_then_by_kind() -> None:
    many, few = candidate("L40S", 5, 0.5), candidate("H100", 2, 0.5)
    assert cheapest([many, few]) is few
    priced = [candidate("L40S", 5, 0.5, 1.0), candidate("H100", 2, 0.5, 3.0)]
    assert cheapest(priced) is priced[0]
    strong, weak = candidate("H200", 2, 0.9), candidate("H100", 2, 0.5)
    assert cheapest([strong, weak]) is weak
    better = replace(weak, strategy="NoBuffer", doubled=replace(weak.served, attainment=0.8))
    assert cheapest([weak, better]) is better
    assert cheapest([FleetCandidate(KIND["L4"], "NoBuffer", "too slow")]) is None


def test_the_busiest_part_is_in_a_row_and_begins_at_zero() -> None:
    times = [0.0, 10.0, 20.0, 20.1, 20.2, 20.3, 40.0]
    whole = RequestStream(
        TraceWorkload("w", 512, [Arrival(at, 500, 1, (number,)) for number, at in enumerate(times)]), True
    )
    part = busiest(whole, 4).workload.arrivals
    assert [round(arrival.at, 3) for arrival in part] == [0.0, 0.1, 0.2, 0.3]
    assert busiest(whole, 7) is whole


def test_kinds_are_named_as_they_are_known_and_priced_all_or_none() -> None:
    assert chosen([]) == KINDS
    assert [(gpu.name, gpu.price) for gpu in chosen(["h100=3.5", "L4=1"])] == [("H100", 3.5), ("L4", 1.0)]
    for wrong in (["H1000"], ["H100=0"], ["H100=x"], ["H100=nan"], ["H100", "L4=1"], ["L4", "l4"]):
        with pytest.raises(InvalidInput):
            chosen(wrong)


def test_the_plot_has_a_point_for_each_fleet_that_was_tried(of_two_kinds: SizingResult) -> None:
    drawn = chart(of_two_kinds, 1.0, "GPU-hours")
    assert drawn == chart(of_two_kinds, 1.0, "GPU-hours")
    circles = [each for each in ElementTree.fromstring(drawn).iter() if each.tag.endswith("circle")]
    assert len(circles) == sum(len(each.runs) for each in of_two_kinds.candidates)


def test_the_time_and_the_tokens_of_a_step_that_were_set_are_those_of_the_simulated_engine() -> None:
    def chunk(**asked: object) -> int:
        constraints = Constraints.of(EngineSettings(model="m", **asked))
        made = plan(model(), constraints, Device("cuda", 80 << 30), 17_800_000_000)
        return profile_of(model(), made, constraints, KIND["L4"]).chunk_tokens

    assert chunk(step_time=0.1) < chunk(step_time=0.2) < chunk(step_time=0) == 2048
    assert chunk() < 2048
    assert chunk(chunked_prefill_tokens=2048) == 2048
    assert chunk(chunked_prefill_tokens=2048, step_time=0.1) == chunk(step_time=0.1)
