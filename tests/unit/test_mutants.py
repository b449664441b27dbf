"""The seeded defects can still be seeded: the list of `make mutants` does not rot between two runs of it."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from matrix_size import LARGE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seeding() -> ModuleType:
    """Return the module that puts defects into the source; those of the areas import it by name."""
    # Last, because an area may be called as a module of the standard library is.
    sys.path.append(str(ROOT / "tests/mutants"))
    import seeded

    return seeded


@pytest.fixture(scope="module")
def mutants(seeding: ModuleType) -> list[Any]:
    """Return all defects."""
    return [mutant for area in seeding.by_area().values() for mutant in area]


def test_each_defect_has_one_place_and_leaves_a_program_behind(
    seeding: ModuleType, mutants: list[Any]
) -> None:
    problems = []
    for mutant in mutants:
        try:
            seeding.check(ROOT, mutant)
        except seeding.Unseedable as error:
            problems.append(f"{mutant.name}: {error}")
    assert not problems, "\n".join(problems)


def with_other_variables(seeding: ModuleType, module: Any) -> Any:
    """Return the same module with another name for each variable of each function."""

    class Renaming(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return self.generic_visit(node)
            variables = seeding.variables_of(node) - seeding.NO_VARIABLES
            binding = seeding.Binding({name: f"{name}_renamed" for name in variables})
            return seeding.Renamed(binding).generic_visit(node)

    tree = Renaming().visit(ast.parse(module.path.read_text()))
    return seeding.parsed(module.name, module.path, tree)


def test_another_name_for_a_local_variable_breaks_no_defect(seeding: ModuleType, mutants: list[Any]) -> None:
    problems = []
    renamed = cache(partial(with_other_variables, seeding))
    for mutant in mutants if LARGE else mutants[::5]:
        try:
            seeding.located([renamed(module) for module in seeding.candidates(ROOT, mutant.where)], mutant)
        except seeding.Unseedable as error:
            problems.append(f"{mutant.name}: {error}")
    assert not problems, "\n".join(problems)


def test_each_defect_names_tests_that_exist(mutants: list[Any]) -> None:
    for mutant in mutants:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), f"{mutant.name}: {test}"
            assert not name or name.partition("[")[0] in (ROOT / file).read_text(), f"{mutant.name}: {test}"


def test_no_two_defects_share_a_name_or_a_change(mutants: list[Any]) -> None:
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    assert len({(mutant.where, mutant.old, mutant.new) for mutant in mutants}) == len(mutants)


def test_every_package_with_decisions_has_defects(seeding: ModuleType, mutants: list[Any]) -> None:
    packages = {
        module.name.split(".")[0] for mutant in mutants for module in seeding.candidates(ROOT, mutant.where)
    }
    assert packages >= {
        "mamba_api", "mamba_planner", "mamba_operator", "mamba_edge", "mamba_gateway", "mamba_prefix",
        "mamba_server", "mamba_telemetry", "mamba_text", "mamba_tier", "mamba_kernels",
    }  # fmt: skip


def test_the_tree_for_a_defect_has_the_files_behind_links_to_folders(
    seeding: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import run

    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data/config.json").write_text("{}")
    (project / "golden").symlink_to("data")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    monkeypatch.setattr(run, "ROOT", project)

    tree = run.copy(tmp_path / "tree")

    assert (tree / "golden/config.json").read_text() == "{}"
    assert (tree / "golden/config.json").resolve().is_relative_to(tree)


SOURCE = """
LIMIT = 3

def other(rows):
    return rows

class Store:
    bound = 1

    def take(self, key, rows):
        # A comment that nobody compares.
        for row in rows:
            if row.size > LIMIT and key:
                self.log(row,
                         key)
                yield row
        return None
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree of one module."""
    folder = tmp_path / "server/mamba_thing/room"
    folder.mkdir(parents=True)
    (folder / "store.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("where", "old", "new", "now"),
    [
        ("store:Store.take", "row.size > LIMIT", "True", "if True and key:"),
        ("room.store:Store.take", "line.size > LIMIT", "line.size", "if row.size and key:"),
        ("elsewhere:Store.take", "row.size > LIMIT and key", "key", "if key:"),
        ("store:Store", "self.log(line, name)", "self.log(name, line)", "self.log(key, row)"),
        ("store:Store.take", "self.log(_1, key)", "_1", "row\n"),
        ("store:Store.take", "for row in rows: ...", "for row in rows[1:]: ...", "for row in rows[1:]:\n"),
        ("store:Store.take", "return None", "pass", "pass"),
        ("store:LIMIT", "LIMIT = 3", "LIMIT = 4", "LIMIT = 4"),
        ("store:Store.bound", "1", "2", "bound = 2"),
        ("store:", "def other(rows): ...", "def other(rows): return []", "return []"),
    ],
)
def test_a_defect_is_put_where_it_says(
    seeding: ModuleType, tree: Path, where: str, old: str, new: str, now: str
) -> None:
    defect = seeding.seeded(tree, seeding.Mutant("a defect", "a rule", where, old, new))
    assert defect.path == tree / "server/mamba_thing/room/store.py"
    assert now in defect.text
    assert "self.log(row, key)" in defect.text or "self.log" in old


@pytest.mark.parametrize(
    ("where", "old", "new", "problem"),
    [
        ("store:Store.gone", "row.size", "1", "nothing is called"),
        ("store:Store.take", "row.length", "1", "occurs 0 times"),
        ("store:Store.take", "LIMIT > line.size", "1", "occurs 0 times"),
        ("store:Store.take", "self.log(row, row)", "1", "occurs 0 times"),
        ("store:Store.take", "other.size", "1", "occurs 0 times"),
        ("store:Store.take", "line", "None", "times"),
        ("store:Store.take", "row.size > LIMIT", "row.size > bound", "`new` has bound"),
        ("store:Store.take", "line.size > LIMIT", "line.size > LIMIT", "is what the source has"),
    ],
)
def test_a_defect_without_its_one_place_says_what_to_do(
    seeding: ModuleType, tree: Path, where: str, old: str, new: str, problem: str
) -> None:
    with pytest.raises(seeding.Unseedable, match=problem):
        seeding.seeded(tree, seeding.Mutant("a defect", "a rule", where, old, new))
