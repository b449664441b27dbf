"""The planner beside the engine: traffic as declared, engines that serve it right, choices that are good."""

import pytest
from benchmarks.planner.__main__ import losses
from benchmarks.planner.case import cases, drawn
from benchmarks.planner.comparison import judge
from benchmarks.planner.engine import engine, served
from benchmarks.planner.step_time import Gpu, StepTime
from benchmarks.planner.traffic import Shape, Traffic, declared

from depth_coded import DepthCodedRunner, oracle
from mamba_planner import Constraints, Device, plan
from mamba_planner.strategy import MOST_ROBUST_FIRST
from mamba_server.wire import AddRequest, SamplingParams

DECISIVE = [drawn(number, 7) for number in (15, 42, 60, 80)]
"""In each a strategy that is not the best gives away much, and none is the best in all."""
CHATS = Shape(concurrency=3, instructions=40, sets=2, turns=4.0, asked=30, answered=12, spread=0.3)


def test_a_case_is_the_same_whatever_others_are_drawn() -> None:
    assert list(cases(3, 3))[1:] == [drawn(1, 3), drawn(2, 3)]
    assert drawn(1, 3) != drawn(1, 4)


def test_traffic_is_what_its_means_say_and_sends_what_was_said() -> None:
    longest = 2000
    said = declared(CHATS, 5, longest)
    assert 0.5 < said.shared_prefix_ratio < 0.95
    assert said.output_tokens == pytest.approx(12, abs=2)
    traffic, before = Traffic(CHATS, 5, longest), set[bytes]()
    for _ in range(50):
        turn, prompt = traffic.next_turn()
        assert len(prompt) == turn.prompt
        assert turn.prompt + turn.outputs <= longest
        traffic.answered(turn, [7] * turn.outputs)
        before.add(bytes(str(prompt), "ascii"))
    assert len(before) == 50


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBufferLazy", "ExtraBuffer"])
def test_what_an_engine_resumes_there_is_right(strategy: str) -> None:
    """A depth-coded model answers as it would alone, and takes the time that any token takes."""
    case = DECISIVE[0]
    fixed = Constraints(strategy=strategy, max_model_len=2000, state_dtype="float32")  # type: ignore[arg-type]
    made = plan(case.model, fixed, Device("cuda", case.device.memory), None, declared(CHATS, 5, 2000))
    times = []
    for runner in (None, DepthCodedRunner):
        options = {} if runner is None else {"runner": runner}
        core, gpu = engine(made, fixed, StepTime(case.model, made, Gpu(2e12, 200)), **options)
        found = served(core, gpu, Traffic(CHATS, 5, 2000), 20, 5)
        times.append((found.seconds, found.tokens, found.resumed))
    assert times[0] == times[1]
    prompt = list(range(1, 300))
    core.add(AddRequest("one", prompt, SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)))
    answer: list[int] = []
    while not core.idle:
        answer += [token for delta in core.step() if delta.request_id == "one" for token in delta.token_ids]
    assert answer == oracle(prompt, 5)


def test_the_choice_gives_little_away_where_one_choice_for_all_would_not() -> None:
    """The whole run is `python -m benchmarks.planner`."""
    judged = [judge(case, length=0.5) for case in DECISIVE]
    assert [(each.case.number, each.loss) for each in judged if each.loss > 0.05] == []
    for strategy in MOST_ROBUST_FIRST:
        assert max(losses(judged, strategy)) > 0.1
