"""Whatever is observed: the bounds hold, more load never asks for less, missing data shrinks nothing."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import ScalingDecision, decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation
from scaled_fleet import Fleet, load, reversals, seen

budget = settings(max_examples=10)

share = st.floats(0, 40, width=32)
count = st.integers(0, 2000)
rate = st.floats(0, 1e5, width=32)
loads = st.builds(
    EngineLoad, engines=st.integers(0, 12), running=count, waiting=count, places=count, slots_used=share,
    pages_used=share, waiting_tokens=rate, arrivals=share, prompt_rate=rate, cached_rate=rate,
    output_rate=rate, prefill_speed=rate, decode_step=st.floats(0, 2, width=32), saturated=st.integers(0, 12),
    saturated_prompt_rate=rate, saturated_output_rate=rate, first_tokens=share, first_tokens_late=share,
    finished=share, finished_slow=share,
)  # fmt: skip
traffics = st.builds(GatewayTraffic, in_flight=count, queued=count, held=count, arrivals=share)
observations = st.builds(
    Observation, at=st.floats(-1e9, 1e9), desired=st.integers(0, 40), ready=st.integers(0, 12),
    pending=st.lists(st.sampled_from("abcdef"), max_size=4, unique=True).map(sorted).map(tuple),
    load=st.none() | loads, traffic=st.none() | traffics, woken=st.booleans(),
)  # fmt: skip
configs = st.builds(
    lambda low, more, ttft, tpot, delay: AutoscalerConfig(
        min_replicas=low, max_replicas=max(low + more, 1), ttft_target=ttft, tpot_target=tpot,
        scale_down_delay=delay,
    ),
    st.integers(0, 6), st.integers(0, 80), st.none() | st.floats(0.01, 60), st.none() | st.floats(0.001, 2),
    st.sampled_from([0.0, 60.0, 300.0]),
)  # fmt: skip


def made_of(
    config: AutoscalerConfig, history: list[Observation]
) -> tuple[AutoscalerMemory, ScalingDecision | None]:
    memory, last = AutoscalerMemory(), None
    for each in history:
        last = decide(each, config, memory)
        memory = last.memory
    return memory, last


@budget
@given(configs, st.lists(observations, min_size=1, max_size=8))
def test_the_bounds_hold_and_what_is_written_down_makes_the_same_again(
    config: AutoscalerConfig, history: list[Observation]
) -> None:
    memory = AutoscalerMemory()
    for each in history:
        made = decide(each, config, memory)
        text = msgspec.json.encode((each, config, memory))
        again = decide(
            *msgspec.json.decode(text, type=tuple[Observation, AutoscalerConfig, AutoscalerMemory])
        )
        assert msgspec.json.encode(again) == msgspec.json.encode(made)
        assert config.min_replicas <= made.target <= config.max_replicas
        assert made.reason
        memory = made.memory


MORE = {
    "waiting": 50, "slots_used": 2.0, "pages_used": 2.0, "waiting_tokens": 1e5,
    "prompt_rate": 1e4, "output_rate": 1e4, "arrivals": 20.0,
}  # fmt: skip


@budget
@given(configs, st.lists(observations, max_size=6), observations, st.sampled_from(sorted(MORE)))
def test_more_of_anything_never_asks_for_fewer_engines(
    config: AutoscalerConfig, history: list[Observation], now: Observation, field: str
) -> None:
    memory, _ = made_of(config, history)
    if now.load is None:
        now = msgspec.structs.replace(now, load=load(max(now.ready, 1), 1.0))
    more = msgspec.structs.replace(now.load, **{field: getattr(now.load, field) + MORE[field]})

    assert (
        decide(msgspec.structs.replace(now, load=more), config, memory).target
        >= decide(now, config, memory).target
    )


@budget
@given(configs, st.lists(observations, max_size=6), st.integers(1, 12), st.integers(0, 2), share)
def test_nothing_shrinks_on_missing_data(
    config: AutoscalerConfig, history: list[Observation], ready: int, reporting: int, requests: float
) -> None:
    memory, _ = made_of(config, history)
    asked = min(max(ready, config.lowest), config.max_replicas)
    told = load(reporting, requests) if 0 < reporting < ready else None
    now = seen(asked, requests, at=memory.at or 0.0, ready=ready, load=told)

    for number in range(60):
        made = decide(msgspec.structs.replace(now, at=now.at + 10.0 * number, desired=asked), config, memory)
        assert made.target >= asked
        memory, asked = made.memory, made.target


looks = st.lists(
    st.tuples(st.sampled_from(["seen", "seen", "silent", "restarted", "late"]), st.integers(1, 60)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=6)
@given(st.integers(2, 20), looks)
def test_a_load_that_is_there_keeps_its_engines_whatever_the_operator_misses(
    engines: int, times: list[tuple[str, int]]
) -> None:
    """Gaps, restarts of the operator and starts that are slow: what is not seen is not gone."""
    config = AutoscalerConfig(min_replicas=1, max_replicas=40, ttft_target=2.0, scale_down_delay=120.0)
    busy = 0.8 * engines * 5.0
    fleet = Fleet(config, engines=engines)
    for what, count in times:
        fleet.silent = what == "silent"
        if what == "restarted":
            fleet.restart()
        assert min(fleet.run([busy] * count)) >= 0.8 * engines, "one engine does five a second"


@settings(max_examples=6)
@given(
    st.floats(10, 2400), st.sampled_from([60.0, 300.0]), st.lists(st.integers(0, 1), min_size=1, max_size=40)
)
def test_an_engine_that_was_woken_is_ready_before_it_is_idle(
    start: float, delay: float, requests: list[int]
) -> None:
    config = AutoscalerConfig(
        min_replicas=0, max_replicas=3, scale_down_delay=delay, start_deadline=start + 60.0
    )
    fleet = Fleet(config, engines=0, start=start)
    fleet.run([0.0] * 5)
    fleet.run([0.1])
    woken = fleet.at
    assert fleet.asked >= 1
    rest = [*(0.1 * each for each in requests), *([0.0] * round((start + delay) / 10.0 + 60))]
    for each in rest:
        [asked] = fleet.run([each])
        assert asked >= 1 or fleet.at - woken >= start, "it was stopped while it loaded"
    assert fleet.asked == 0, "it is idle in the end"


@settings(max_examples=6)
@given(
    st.floats(3, 60),
    st.lists(st.floats(0.9, 1.1), min_size=200, max_size=200),
    st.sampled_from([30.0, 150.0]),
    st.integers(0, 2),
)
def test_a_steady_load_is_no_reason_to_go_up_and_down_however_late_it_is_seen(
    requests: float, noise: list[float], start: float, late: int
) -> None:
    bounds = AutoscalerConfig(min_replicas=1, max_replicas=40, ttft_target=2.0, tpot_target=0.1)
    fleet = Fleet(bounds, start=start, late=late)
    fleet.run([requests * each for each in noise])

    assert reversals(fleet.run([requests * each for each in noise])) <= 1
