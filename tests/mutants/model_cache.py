"""Defects of the list of downloaded models, and of what `mambaserve pull` refuses."""

from seeded import Mutant

MODELS = "tests/unit/cli/test_models.py::"

MUTANTS = (
    Mutant(
        name="a download that broke off is listed as complete",
        keeps="A listed model is complete only if all its weights are there.",
        where="checkpoint.cached_models:_state",
        old="'no weights' if (copy / 'config.json').is_file() and not unfinished else 'incomplete'",
        new="'complete'",
        tests=(f"{MODELS}test_a_pull_that_broke_off_is_listed_and_continued",),
    ),
    Mutant(
        name="a model is pulled that nothing can serve",
        keeps="A model that cannot be served is refused before its weights are fetched.",
        where="models.pull:command",
        old="_require_served(uri)",
        new="pass",
        tests=(f"{MODELS}test_a_model_that_cannot_be_served_is_refused_before_its_weights",),
    ),
    Mutant(
        name="only downloads count as uses",
        keeps="Each process that opens a copy records its use.",
        where="checkpoint.source:_resolved",
        old="record_use(copy, uri)",
        new="pass",
        tests=(f"{MODELS}test_each_use_is_noted_and_the_last_one_comes_first",),
    ),
)
