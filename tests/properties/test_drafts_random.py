"""Long random runs of whole engines whose steps check drafts, with the depth-coded model.

As `test_engine_random`, and drafts of 0 to 9 tokens, of which chance decides how many are right; page sizes
from one token on. Every lane, live slot and checkpoint is compared with the truth after each event.
"""

from collections import Counter

import pytest

from engine_trial import STRATEGIES, drive
from property_runs import BUDGET, LARGE

pytestmark = pytest.mark.slow
STEPS = {"large": 200_000, "small": 1_500}.get(BUDGET, 1_500)
CASES = [(strategy, overlap) for strategy in STRATEGIES for overlap in (True, False)]
MOST = (1, 2, 5, 9)


@pytest.fixture(scope="module")
def outcome() -> Counter[str]:
    """Return the counts of all runs."""
    seen, seed = Counter[str](), 0
    while seen["steps"] < STEPS:
        strategy, overlap = CASES[seed % len(CASES)]
        try:
            trial = drive(seed, strategy, overlap=overlap, drafts=MOST[seed // len(CASES) % len(MOST)])
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        drafts = trial.drafts
        seen.update(
            steps=trial.core.step_number, drafted=drafts.drafted, accepted=drafts.accepted,
            absorbed=drafts.absorbed, absorbed_alone=trial.runner.absorbed_alone,
            preempted=trial.core.scheduler.counters.preemptions, failed=trial.core.failed_steps,
            resumed=trial.core.scheduler.counters.cached_tokens,
        )  # fmt: skip
        seed += 1
    return seen


@pytest.mark.timeout(7200 if LARGE else 1800)
def test_with_drafts_every_token_is_the_one_served_alone_whatever_happens(outcome: Counter[str]) -> None:
    assert outcome["steps"] >= STEPS


@pytest.mark.parametrize(
    "event",
    ["drafted", "accepted", "absorbed", "absorbed_alone", "preempted", "failed", "resumed"],
)
def test_the_runs_with_drafts_reach(event: str, outcome: Counter[str]) -> None:
    assert outcome[event] > 0


def test_some_drafts_are_right_and_some_are_wrong(outcome: Counter[str]) -> None:
    assert 0 < outcome["accepted"] < outcome["drafted"]
    # What a sequence that ends had accepted last is never absorbed.
    assert 0 < outcome["absorbed"] <= outcome["accepted"]
