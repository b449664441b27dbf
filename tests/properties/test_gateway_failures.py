"""Whatever mix of engines a gateway has: no engine that is well idles while requests fail."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from failing_fleet import PLACES, QUEUE, Engine, Fleet
from mamba_gateway.endpoints.endpoint import SUSPICIOUS
from virtual_time import in_virtual_time

budget = settings(max_examples=16)
WELL = st.builds(
    Engine,
    seconds=st.sampled_from([0.05, 0.3]),
    comes_at=st.sampled_from([0.0, 0.0, 3.5]),
    status=st.just(200),
)
HERE = st.builds(Engine, seconds=st.sampled_from([0.05, 0.3]))
SLOW = st.builds(Engine, seconds=st.just(20.0))
ILL = st.builds(Engine, status=st.sampled_from([None, 401, 404, 429, 503]))
BURSTS = st.lists(st.tuples(st.integers(1, 8), st.sampled_from([0.0, 0.1, 1.5])), min_size=1, max_size=8)


async def asked(fleet: Fleet, bursts: list[tuple[int, float]], key: str) -> None:
    """Send bursts of requests, each followed by seconds of rest, again and again."""
    asking = []
    for count, rest in bursts:
        asking += [asyncio.create_task(fleet.ask(key)) for _ in range(count)]
        await asyncio.sleep(rest)
    await asyncio.gather(*asking)


@budget
@given(st.lists(WELL, min_size=1, max_size=2), st.lists(SLOW, max_size=1), st.lists(ILL, max_size=2), BURSTS)
def test_requests_that_an_engine_could_answer_do_not_fail(well, slow, ill, bursts) -> None:
    @in_virtual_time
    async def run() -> None:
        fleet = Fleet([*ill, *slow, *well])
        await asked(fleet, bursts, "a")
        await fleet.close()
        assert [failure for failure in fleet.failures if failure[2]] == []
        count = sum(count for count, _ in bursts)
        # More than an engine takes at once it refuses; before it came, only ill ones were there.
        if count <= PLACES + QUEUE and not (ill and any(one.comes_at for one in well)):
            assert fleet.answered == count
        assert fleet.admission.admitted == fleet.admission.in_flight == fleet.admission.unsent == 0

    run()


@budget
@given(st.lists(HERE, min_size=1, max_size=2), BURSTS)
def test_of_an_engine_that_calls_every_request_wrong_few_clients_hear(well, bursts) -> None:
    @in_virtual_time
    async def run() -> None:
        fleet = Fleet([Engine(status=400), *well])
        await asked(fleet, bursts, "a")
        await fleet.close()
        # It is suspected from the third on; by then a burst may be there.
        wrong = [told for _, told, _ in fleet.failures if told == [400]]
        assert len(wrong) <= SUSPICIOUS + max(count for count, _ in bursts)

    run()


@budget
@given(
    st.tuples(st.just([]), st.lists(WELL, min_size=1, max_size=2))
    | st.tuples(st.lists(ILL, max_size=1), st.lists(HERE, min_size=1, max_size=2)),
    st.integers(40, 200), BURSTS,
)  # fmt: skip
def test_a_key_that_floods_the_gateway_fails_alone_and_only_while_engines_are_busy(
    engines, flood, bursts
) -> None:
    ill, well = engines

    @in_virtual_time
    async def run() -> None:
        fleet = Fleet([*ill, *well], max_in_flight=len(well) * (PLACES + QUEUE), max_queue=12)
        greedy = [asyncio.create_task(fleet.ask("greedy")) for _ in range(flood)]
        await asyncio.sleep(0)
        few = [(min(count, 2), max(rest, 0.1)) for count, rest in bursts[:3]]
        await asked(fleet, few, "modest")
        await asyncio.gather(*greedy)
        await fleet.close()
        assert [failure for failure in fleet.failures if failure[0] == "modest"] == []
        assert not any(idle for _, _, idle in fleet.failures)

    run()
