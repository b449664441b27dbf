"""The seeded defects can still be seeded: the list of `make mutants` does not rot between two runs of it."""

import ast
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> list[Any]:
    """All of them; their modules import `seeded` by name."""
    # Last, because an area may be called as a module of the standard library is.
    sys.path.append(str(ROOT / "tests/mutants"))
    from seeded import by_area

    return [mutant for each in by_area().values() for mutant in each]


def test_each_text_occurs_once_and_leaves_a_program_behind(mutants: list[Any]) -> None:
    wrong = []
    for mutant in mutants:
        path = ROOT / mutant.path
        text = path.read_text() if path.is_file() else ""
        if text.count(mutant.old) != 1:
            wrong.append(f"{mutant.name}: {text.count(mutant.old)} times in {mutant.path}")
        elif path.suffix == ".py":
            ast.parse(text.replace(mutant.old, mutant.new))
    assert not wrong, "\n".join(wrong)


def test_each_names_tests_that_exist(mutants: list[Any]) -> None:
    for mutant in mutants:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), f"{mutant.name}: {test}"
            assert not name or name.partition("[")[0] in (ROOT / file).read_text(), f"{mutant.name}: {test}"


def test_no_two_share_a_name_or_a_change(mutants: list[Any]) -> None:
    assert [name for name, count in Counter(each.name for each in mutants).items() if count > 1] == []
    assert len({(each.path, each.old, each.new) for each in mutants}) == len(mutants)
