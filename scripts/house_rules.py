"""Rules for names, prose and shape of the product's code, which `make lint` checks.

As a command, lists every place that breaks a rule, and ends with 1 if there is one.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("libs", "operator", "server", "cli", "kernels", "tests", "scripts", "benchmarks", "charts")
"""Folders of the project's Python files, where git does not list them."""
SPLIT = ("mamba_server",)
"""Packages whose folders are looked at one by one, because each folder is a layer."""

FRAGMENTS = frozenset(
    (
        "of", "as", "those", "that", "these", "it", "its", "they", "what", "who", "whose", "whoever", "told",
        "asked", "among", "to",
    )
)  # fmt: skip
"""First words of docstrings that refer to something which the docstring does not name."""
BANNED = frozenset(
    (
        "made", "found", "said", "told", "asked", "shown", "given", "taken", "meant", "there", "known",
        "wanted",
    )
)  # fmt: skip
"""Names that say nothing of what a variable holds. A leading underscore does not help."""
LOCAL_NUMBERS = ("mamba_kernels",)
"""Packages in which a constant means its own module's tile or block, so that its name may come again."""
MOST_BRANCHES = 15
MOST_BLOCKS = 4
MOST_MODULES = 18
MOST_LINES = 600
FEWEST_LINES = 40
"""Length from which a module may serve one neighbour alone."""
BLOCK_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a syntax tree's nodes that hold statements, or what holds statements."""


@dataclass(frozen=True)
class Module:
    """One source file of the product, parsed."""

    name: str
    """Dotted name, without `.__init__`."""
    path: str
    """Path from the root of the project."""
    tree: ast.Module
    lines: int

    @property
    def is_package(self) -> bool:
        """Whether the file is the `__init__.py` of a folder."""
        return self.path.endswith("/__init__.py")

    @property
    def folder(self) -> str:
        """Dotted name of the folder that holds the file."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def package(self) -> str:
        """Package, or layer of a split package, in which a constant has one value."""
        first, *rest = self.folder.split(".")
        return f"{first}.{rest[0]}" if first in SPLIT and rest else first


@dataclass(frozen=True, order=True)
class Place:
    """One place that breaks one rule."""

    path: str
    line: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.detail}"


def packages() -> list[Path]:
    """Return the folders of all packages that the wheel holds."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [ROOT / path for path in config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def modules() -> list[Module]:
    """Parse every source file of the product."""
    return [
        parse(path.read_text(), path.relative_to(ROOT).as_posix(), path.relative_to(package.parent))
        for package in packages()
        for path in sorted(package.rglob("*.py"))
    ]


def parse(text: str, path: str, inside: Path) -> Module:
    """Parse one source file.

    Args:
        text: the source.
        path: path from the root of the project.
        inside: path from the folder that holds the package.
    """
    name = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
    return Module(name, path, ast.parse(text), text.count("\n"))


def blocks(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and all statements, handlers and cases in it, without the more numerous expressions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in BLOCK_FIELDS:
            if isinstance(inside := getattr(node, name, None), list):
                waiting.extend(inside)


# --- prose ---


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring; a string that follows an assignment is one as well."""
    for node in blocks(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        owner = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        previous: ast.stmt | None = None
        for place, statement in enumerate(body):
            follows = isinstance(previous, ast.Assign | ast.AnnAssign) or (owner and place == 0)
            previous = statement
            if (
                follows
                and isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


def fragments(module: Module) -> Iterator[Place]:
    """Yield the docstrings that begin with a word of FRAGMENTS."""
    for line, text in docstrings(module.tree):
        word = re.match(r"\w*", text.strip())
        if word and word[0].lower() in FRAGMENTS:
            begin = " ".join(text.split())[:60]
            yield Place(module.path, line, "docstring-begins-with-a-fragment", begin)


# --- names ---


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every variable, attribute and parameter, where it gets its value."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield node.lineno, name


def banned_names(module: Module) -> Iterator[Place]:
    """Yield the bindings of names of BANNED."""
    for line, name in bindings(module.tree):
        if name.strip("_") in BANNED:
            yield Place(module.path, line, "banned-name", name)


# --- shape of functions ---


Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
)  # fmt: skip


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function, except kernels: a Triton kernel's branches are chosen when it is compiled."""
    for node in blocks(tree):
        if isinstance(node, Function) and not any(
            ast.unparse(decorator).startswith("triton.") for decorator in node.decorator_list
        ):
            yield node


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function):
            waiting.extend(ast.iter_child_nodes(node))


def branches(function: Function) -> int:
    """Count the branches of a function.

    An `if`, loop, handler, conditional expression, loop of a comprehension and case of a `match` is one, and
    so is each further operand of `and` and `or`.
    """
    number = 0
    for node in own_nodes(function):
        match node:
            case (
                ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler() | ast.IfExp()
                | ast.comprehension() | ast.match_case()
            ):  # fmt: skip
                number += 1
            case ast.BoolOp(values=values):
                number += len(values) - 1
    return number


def depth(body: Iterable[ast.AST], blocks: int = 0) -> int:
    """Return how deep blocks are nested in `body`. An `elif` is as deep as its `if`."""
    deepest = blocks
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            continue
        inside = blocks + isinstance(node, BLOCKS)
        for name in BLOCK_FIELDS:
            children = getattr(node, name, None)
            if not isinstance(children, list):
                continue
            chained = name == "orelse" and len(children) == 1 and isinstance(children[0], ast.If)
            deepest = max(deepest, depth(children, blocks if chained else inside))
            if not chained and children:
                deepest = max(deepest, inside)
    return deepest


def tangled_functions(module: Module) -> Iterator[Place]:
    """Yield the functions with too many branches, and those with blocks nested too deep."""
    for function in functions(module.tree):
        if (number := branches(function)) > MOST_BRANCHES:
            detail = f"{function.name} has {number} branches, at most {MOST_BRANCHES}"
            yield Place(module.path, function.lineno, "too-many-branches", detail)
        if (number := depth(function.body)) > MOST_BLOCKS:
            detail = f"{function.name} nests {number} blocks, at most {MOST_BLOCKS}"
            yield Place(module.path, function.lineno, "nested-too-deep", detail)


# --- shape of folders ---


def crowded_folders(every: list[Module]) -> Iterator[Place]:
    """Yield the folders with too many modules."""
    members: dict[str, list[Module]] = defaultdict(list)
    for module in every:
        if not module.is_package:
            members[module.folder].append(module)
    for folder, inside in members.items():
        if len(inside) > MOST_MODULES:
            detail = f"{folder} holds {len(inside)} modules, at most {MOST_MODULES}"
            path = inside[0].path.rpartition("/")[0]
            yield Place(path, 1, "crowded-folder", detail)


def importers(every: list[Module]) -> dict[str, set[str]]:
    """Return, for each module, the names of the modules that import it or something of it."""
    names = {module.name for module in every}
    users: dict[str, set[str]] = defaultdict(set)
    for module in every:
        for node in blocks(module.tree):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                targets = [
                    full if (full := f"{node.module}.{alias.name}") in names else node.module
                    for alias in node.names
                ]
            for target in targets:
                users[target].add(module.name)
    return users


def satellites(every: list[Module]) -> Iterator[Place]:
    """Yield the short modules whose only importer is a module (no `__init__.py`) of the same folder."""
    users = importers(every)
    by_name = {module.name: module for module in every}
    for module in every:
        if module.is_package or module.lines >= FEWEST_LINES or len(users[module.name]) != 1:
            continue
        user = by_name[next(iter(users[module.name]))]
        if user.folder == module.folder and not user.is_package:
            detail = f"{module.lines} lines, which {user.name} alone imports: make it part of that module"
            yield Place(module.path, 1, "satellite", detail)


def numbers(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and value of the numeric constants of a module; the value as it is written."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                leaves = (
                    ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Call | ast.Name
                    | ast.Load
                )  # fmt: skip
                nodes = list(ast.walk(value))
                digits = [
                    node for node in nodes
                    if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
                    and not isinstance(node.value, bool)
                ]  # fmt: skip
                plain = all(isinstance(node, leaves) for node in nodes) and not any(
                    isinstance(node, ast.Constant) and node not in digits for node in nodes
                )
                if name.strip("_").isupper() and digits and plain:
                    yield statement.lineno, name, ast.unparse(value)


def ambiguous_constants(every: list[Module]) -> Iterator[Place]:
    """Yield the numeric constants that another module of the same package defines with another value."""
    uses: dict[tuple[str, str], list[tuple[Module, int, str]]] = defaultdict(list)
    for module in every:
        if module.package in LOCAL_NUMBERS:
            continue
        for line, name, value in numbers(module.tree):
            uses[module.package, name].append((module, line, value))
    for (_, name), definitions in uses.items():
        if len({value for _, _, value in definitions}) > 1:
            for module, line, value in definitions:
                others = ", ".join(
                    f"{at.name} ({number})" for at, _, number in definitions if number != value
                )
                detail = f"{name} = {value} is another number in {others}"
                yield Place(module.path, line, "ambiguous-constant", detail)


# --- length ---


def long_files(lengths: Mapping[str, int]) -> Iterator[Place]:
    """Yield the files that are too long to be read; `lengths` holds the lines of each by its path."""
    for path, lines in lengths.items():
        if lines > MOST_LINES:
            yield Place(path, 1, "long-file", f"{lines} lines, at most {MOST_LINES}")


@cache
def python_files() -> list[Path]:
    """Return every Python file of the project, tests included; without git, all below the known folders."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tracked.returncode == 0:
        return [ROOT / line for line in tracked.stdout.splitlines() if (ROOT / line).is_file()]
    return [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def lines_of(files: Iterable[Path]) -> dict[str, int]:
    """Return the number of lines of each file by its path from the root of the project."""
    return {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}


# --- all rules ---


def places(every: list[Module], lengths: Mapping[str, int]) -> list[Place]:
    """Return every place that breaks a rule, sorted by file and line; `lengths` as of `long_files`."""
    broken = [
        place
        for module in every
        for rule in (fragments, banned_names, tangled_functions)
        for place in rule(module)
    ]
    for over_all in (crowded_folders, satellites, ambiguous_constants):
        broken.extend(over_all(every))
    return sorted([*broken, *long_files(lengths)])


def main() -> int:
    """List the places that break a rule. Return the exit status."""
    # The collector would walk through millions of nodes again and again, none of which is garbage.
    gc.disable()
    lengths = lines_of(python_files())
    broken = places(modules(), lengths)
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"House rules: {len(broken)} places in {len(lengths)} files break one")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
