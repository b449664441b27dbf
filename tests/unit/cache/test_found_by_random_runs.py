"""Defects that random runs found, each in its smallest form."""

import random

from engine_trial import EngineTrial, TrialSetup


def test_a_prompt_shorter_than_a_page_is_forgotten_once_it_is_computed() -> None:
    trial = EngineTrial(TrialSetup(page_size=16, pages_per_slab=1), random.Random(0))
    trial.add([1, 2, 3], 5)
    trial.step()
    assert not trial.cache._prefilling
    trial.close()
