"""Guards of the layout: each has cost somebody an afternoon once."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from scripts.house_rules import python_files

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("libs", "operator", "server", "cli", "kernels")


@cache
def imported(path: Path) -> list[str]:
    """Return the names that a file imports.

    The syntax tree is not kept: the garbage collector would walk through the trees of all files.
    """
    return imports(ast.parse(path.read_text(encoding="utf-8")))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements, at any depth, without the far more numerous expressions."""
    for node in body:
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, inside, []))


def imports(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_the_guards_look_at_the_project() -> None:
    assert len(python_files()) > 50
    assert ROOT / "libs/mamba_api/names.py" in python_files()


@pytest.mark.parametrize("options", [[], ["-I"], ["-S"]], ids=["plain", "isolated", "no site"])
def test_an_interpreter_started_in_the_root_gets_the_standard_operator(options: list[str]) -> None:
    code = "import operator, collections, enum, re; print(operator.__file__); operator.itemgetter"
    done = subprocess.run([sys.executable, *options, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "operator")


def test_a_script_with_the_root_on_its_path_gets_the_standard_operator() -> None:
    code = "import sys; sys.path.insert(0, '.'); import operator; print(operator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "operator")


def test_source_roots_are_no_packages() -> None:
    assert [root for root in SOURCE_ROOTS if (ROOT / root / "__init__.py").exists()] == []


def test_no_folder_below_tests_is_a_package() -> None:
    assert [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")] == []


def test_every_package_is_typed_and_in_the_wheel() -> None:
    packages = [
        path.relative_to(ROOT).as_posix()
        for root in SOURCE_ROOTS
        for path in sorted((ROOT / root).iterdir())
        if (path / "__init__.py").exists()
    ]
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(packages)
    assert [package for package in packages if not (ROOT / package / "py.typed").exists()] == []


def test_no_module_is_named_like_a_standard_one() -> None:
    """Ruff's A005 says the same; this one also sees folders, and names its exceptions."""
    inside = [path for path in python_files() if path.relative_to(ROOT).parts[0] in SOURCE_ROOTS]
    named = {part for path in inside for part in (path.stem, path.parent.name)} - set(SOURCE_ROOTS)
    assert named & set(sys.stdlib_module_names) <= {"__init__", "__main__"}


def test_no_module_is_a_bag_of_odds_and_ends() -> None:
    bags = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "manager"}
    assert [str(path.relative_to(ROOT)) for path in python_files() if path.stem in bags] == []


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_nobody_imports_through_a_source_root(root: str) -> None:
    packages = [path.name for path in (ROOT / root).iterdir() if (path / "__init__.py").exists()]
    doubles = tuple(f"{root}.{package}" for package in packages)
    # Most files do not even begin such a line, and to parse them all takes seconds.
    suspect = re.compile(rf"^\s*(?:from|import)\s.*\b{root}\b", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        if suspect.search(path.read_text(encoding="utf-8"))
        for name in imported(path)
        if name.startswith(doubles)
    ]
    assert found == []


def folder_of(name: str, modules: Mapping[str, Path]) -> str | None:
    """Return the folder of the module that `name` is, or is something in; None for the code of others."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    if not name:
        return None
    return name if modules[name].stem == "__init__" else name.rpartition(".")[0]


def folder_graph() -> dict[str, set[str]]:
    """Return for each folder of the packages the folders that it imports."""
    modules = {
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__"): path
        for root in SOURCE_ROOTS
        for path in python_files()
        if path.is_relative_to(ROOT / root) and len(path.relative_to(ROOT / root).parts) > 1
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        folder = folder_of(name, modules)
        assert folder is not None
        targets = {folder_of(target, modules) for target in imported(path)}
        graph.setdefault(folder, set()).update(target for target in targets if target and target != folder)
    return graph


def test_no_folders_import_each_other_not_even_round_a_corner() -> None:
    graph = folder_graph()
    assert len(graph) > 40
    with_arrows = {folder for folder, targets in graph.items() if targets}
    assert {"mamba_operator.render", "mamba_kernels.dispatch", "mamba_server.engine.stepping"} <= with_arrows
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
