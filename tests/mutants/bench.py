"""Defects of the loads that `bench` sends."""

from seeded import Mutant

MUTANTS = (
    Mutant(
        name="the second turn of a conversation is sent beside its first",
        keeps="A later turn of a dataset follows all earlier ones, whose prefix it repeats.",
        where="bench.dataset:requests",
        old="[prompt for turn in rounds for prompt in turn if prompt is not None]",
        new="[prompt for turns in zip(*rounds) for prompt in turns if prompt is not None]",
        tests=("tests/unit/bench/test_dataset.py",),
    ),
    Mutant(
        name="turns that repeat each other count as cached before the run",
        keeps="Only tokens that the dataset itself does not share were cached before the run.",
        where="bench.dataset:cached_before",
        old="cached - math.ceil(shared_share(prompts) * prompt_tokens)",
        new="cached",
        tests=("tests/unit/bench/test_dataset.py",),
    ),
)
