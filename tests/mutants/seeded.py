"""Seeded defects: what one is, and how it is put into the source.

One module for each area beside this one exports `MUTANTS`. A defect names a function by its qualified name,
and an expression or some statements in it. Both are compared after parsing, so that neither formatting nor
comments matter. The names of a function's own variables do not matter either: a variable of the pattern may
have any name in the source, as long as it has the same one everywhere. So an entry has to change only when
the code that it stands for is written differently, and then `tests/unit/test_mutants.py` fails.
"""

import ast
import builtins
import copy
import importlib.util
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = ("run", "seeded")
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
SOURCES = tuple(dict.fromkeys(path.partition("/")[0] for path in PACKAGES))
"""Folders of a tree that hold the packages."""
RUNS = "tests/properties/test_engine_random.py::test_every_token_is_the_one_served_alone_whatever_happens"
WILDCARD = re.compile(r"_\d+")
"""A name in `old` that stands for any expression, and for the same one in `new`."""
NO_VARIABLES = frozenset({"self", "cls"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
HasBody = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Unseedable(Exception):
    """A defect cannot be put into the source; says what to do."""


@dataclass(frozen=True)
class Mutant:
    """One defect and the tests that have to notice it."""

    name: str
    """Defect, in the words of a user or an engineer."""
    keeps: str
    """Invariant that the code keeps, or bug that it had, which the defect takes away or brings back."""
    where: str
    """`module:qualified.name`. The module is the end of a dotted name; its folder may be left out.

    The qualified name is that of a function, a class or a constant. A module that has moved is found by what
    it defines.
    """
    old: str
    """An expression, or statements, that occur once there.

    `_1` stands for any expression, and a body of `...` for any statements.
    """
    new: str
    """Replacement of `old`."""
    tests: tuple[str, ...] = ("tests/unit/cache", RUNS)
    """Tests that run in order until one fails: the quickest comes first."""


@dataclass
class Binding:
    """Values of the variable parts of a pattern in the source."""

    variables: dict[str, str] = field(default_factory=dict)
    """Variable in the pattern -> variable in the source."""
    wildcards: dict[str, ast.expr] = field(default_factory=dict)
    bodies: list[list[ast.stmt]] = field(default_factory=list)
    """Statements for each body of `...`, in order."""

    def bind(self, name: str, other: str) -> bool:
        """Take `name` for `other`, unless either is already another one's partner."""
        if self.variables.setdefault(name, other) != other:
            return False
        return list(self.variables.values()).count(other) == 1


@dataclass(frozen=True)
class Source:
    """One parsed file."""

    name: str
    """Dotted name of the module."""
    path: Path
    tree: ast.Module
    globals: frozenset[str]
    """Names that mean the same everywhere in the module, those of the language included."""


@dataclass(frozen=True)
class Seeded:
    """A file of the tree with a defect in it."""

    path: Path
    text: str


def by_area() -> dict[str, tuple[Mutant, ...]]:
    """Return the defects of each module beside this one, by the module's name."""
    areas = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem not in OURS:
            # By path: a module may be called as an area is, also where the standard library knows the name.
            spec = importlib.util.spec_from_file_location(f"mutants_of_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            areas[path.stem] = module.MUTANTS
    return areas


# --- where ---


@cache
def paths(root: Path) -> dict[str, Path]:
    """Return the path of each module of the product in the tree `root`, by dotted name."""
    return {
        ".".join(path.relative_to(root / folder).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in SOURCES
        for path in sorted((root / folder).rglob("*.py"))
    }


@cache
def source(name: str, path: Path) -> Source:
    """Read and parse one module."""
    return parsed(name, path, ast.parse(path.read_text()))


def parsed(name: str, path: Path, tree: ast.Module) -> Source:
    """Return a module from its tree."""
    return Source(name, path, tree, frozenset(bound_in(tree, deep=False)) | frozenset(dir(builtins)))


def bound_in(tree: ast.AST, deep: bool = True) -> Iterator[str]:
    """Yield the names that are bound in `tree`: assigned, imported, defined, parameters.

    Args:
        tree: a module or a function.
        deep: whether what is bound inside its functions and classes counts.
    """
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                if not deep:
                    continue
        waiting.extend(ast.iter_child_nodes(node))


@cache
def defined_in(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Return the functions, classes and constants below `tree` by their name, those near the root first."""
    nodes: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
        for name in names:
            if node is not tree:
                nodes[name].append(node)
    return dict(nodes)


def definition(tree: ast.AST, parts: list[str]) -> list[ast.AST]:
    """Return the nodes from below `tree` to what `parts` name; none if there is no such thing."""
    if not parts:
        return []
    for node in defined_in(tree).get(parts[0], ()):
        inside = definition(node, parts[1:])
        if inside or not parts[1:]:
            return [node, *inside]
    return []


def qualified(where: str) -> list[str]:
    """Return the parts of the qualified name; none for a whole module."""
    return [part for part in where.partition(":")[2].split(".") if part]


def candidates(root: Path, where: str) -> list[Source]:
    """Return the modules that define what `where` names.

    Those that are called as `where` says come alone; where there is none, every module counts.
    """
    module, parts = where.partition(":")[0], qualified(where)

    def defining(names: list[str]) -> list[Source]:
        every = [source(name, paths(root)[name]) for name in names]
        return [each for each in every if not parts or definition(each.tree, parts)]

    named = [name for name in paths(root) if f".{name}".endswith(f".{module}")]
    return defining(named) or (defining(list(paths(root))) if parts else [])


# --- what ---


def wildcard_body(nodes: object) -> bool:
    """Return whether this is the body of a pattern that stands for any statements."""
    return (
        isinstance(nodes, list) and len(nodes) == 1 and isinstance(nodes[0], ast.Expr)
        and isinstance(nodes[0].value, ast.Constant) and nodes[0].value.value is ...
    )  # fmt: skip


@dataclass(frozen=True)
class Matcher:
    """Compares a pattern with the source of one function."""

    globals: frozenset[str]
    """Names that mean the same everywhere in the module."""
    variables: frozenset[str]
    """Names of the function's own variables."""

    def same_variable(self, name: str, other: str, binding: Binding) -> bool:
        """Compare a name of the pattern with one of the source."""
        if other not in self.variables or other in NO_VARIABLES:
            return name == other
        if name != other and (name in self.globals or name in NO_VARIABLES):
            return False
        return binding.bind(name, other)

    def same(self, pattern: object, other: object, binding: Binding) -> bool:
        """Compare two trees, or parts of them, and extend `binding`."""
        if isinstance(pattern, ast.Name) and WILDCARD.fullmatch(pattern.id) and isinstance(other, ast.expr):
            return ast.dump(binding.wildcards.setdefault(pattern.id, other)) == ast.dump(other)
        if wildcard_body(pattern) and isinstance(other, list):
            binding.bodies.append(other)
            return True
        if isinstance(pattern, list) and isinstance(other, list):
            return len(pattern) == len(other) and all(
                self.same(one, two, binding) for one, two in zip(pattern, other, strict=True)
            )
        if not isinstance(pattern, ast.AST) or not isinstance(other, ast.AST):
            return type(pattern) is type(other) and pattern == other
        if type(pattern) is not type(other):
            return isinstance(pattern, ast.expr_context) and isinstance(other, ast.expr_context)
        named = isinstance(pattern, ast.Name | ast.arg | ast.ExceptHandler | ast.MatchAs | ast.MatchStar)
        for part in pattern._fields:
            one, two = getattr(pattern, part, None), getattr(other, part, None)
            if named and part in ("id", "arg", "name") and isinstance(one, str) and isinstance(two, str):
                if not self.same_variable(one, two, binding):
                    return False
            elif part not in ("kind", "type_comment") and not self.same(one, two, binding):
                return False
        return True


@dataclass(frozen=True)
class Spot:
    """One place in a tree that a pattern matches: a part of a node, or some places of a list in it."""

    owner: ast.AST
    part: str
    start: int | None
    stop: int
    binding: Binding

    def put(self, new: list[ast.stmt]) -> None:
        """Replace what stands here."""
        nodes = getattr(self.owner, self.part)
        if self.start is None:
            assert isinstance(new[0], ast.Expr)
            setattr(self.owner, self.part, new[0].value)
        elif isinstance(nodes[self.start], ast.expr):
            assert isinstance(new[0], ast.Expr)
            nodes[self.start] = new[0].value
        else:
            nodes[self.start : self.stop] = new


def variables_of(function: ast.AST) -> frozenset[str]:
    """Return the names of a function's own variables, and of those of functions inside it."""
    shared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    return frozenset(bound_in(function)) - shared


def nodes_with_variables(
    node: ast.AST, variables: frozenset[str] | None
) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield each node in `node`, itself included, with the variables of the outermost function around it."""
    if variables is None and isinstance(node, Function):
        variables = variables_of(node)
    yield node, variables or frozenset()
    for child in ast.iter_child_nodes(node):
        yield from nodes_with_variables(child, variables)


def spots(way: list[ast.AST], old: list[ast.stmt], expression: bool, module: Source) -> list[Spot]:
    """Return every place that `old` matches in the last of `way`, a constant itself included."""
    matches = []
    *around, scope = way
    function = next((node for node in around if isinstance(node, Function)), None)

    def compare(pattern: object, other: object, *place: Any) -> None:
        binding = Binding()
        if matcher.same(pattern, other, binding):
            matches.append(Spot(*place, binding))

    for owner, variables in nodes_with_variables(scope, variables_of(function) if function else None):
        matcher = Matcher(module.globals, variables)
        for part, value in ast.iter_fields(owner):
            if expression:
                assert isinstance(old[0], ast.Expr)
                if isinstance(value, ast.expr):
                    compare(old[0].value, value, owner, part, None, 0)
                elif isinstance(value, list):
                    for place, each in enumerate(value):
                        if isinstance(each, ast.expr):
                            compare(old[0].value, each, owner, part, place, place + 1)
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                for start in range(len(value) - len(old) + 1):
                    compare(old, value[start : start + len(old)], owner, part, start, start + len(old))
    if isinstance(scope, ast.Assign | ast.AnnAssign) and not expression and isinstance(around[-1], HasBody):
        matcher = Matcher(module.globals, frozenset())
        place = around[-1].body.index(scope)
        compare(old, [scope], around[-1], "body", place, place + 1)
    return matches


class Renamed(ast.NodeTransformer):
    """Puts what a pattern's parts stand for into the text that replaces it."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.bodies = list(binding.bodies)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rename variables and fill in bodies."""
        for part in ("id", "arg", "name"):
            variable = isinstance(node, ast.Name | ast.arg | ast.ExceptHandler | ast.MatchAs | ast.MatchStar)
            if variable and isinstance(name := getattr(node, part, None), str):
                setattr(node, part, self.binding.variables.get(name, name))
        if isinstance(node, ast.Nonlocal):
            node.names = [self.binding.variables.get(name, name) for name in node.names]
        for part, value in ast.iter_fields(node):
            if wildcard_body(value) and self.bodies:
                setattr(node, part, copy.deepcopy(self.bodies.pop(0)))
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Fill in a wildcard."""
        return copy.deepcopy(self.binding.wildcards.get(node.id)) or self.generic_visit(node)


def located(sources: list[Source], mutant: Mutant) -> tuple[Source, Spot]:
    """Return the one place where the defect belongs, in that of `sources` which has it. Raises Unseedable."""
    old, new = ast.parse(mutant.old).body, ast.parse(mutant.new).body
    expression = len(old) == len(new) == 1 and isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr)
    if not sources:
        raise Unseedable(f"nothing is called {mutant.where}; say in `where` what it is called now")
    if ast.dump(ast.Module(old, [])) == ast.dump(ast.Module(new, [])):
        raise Unseedable("`new` is what the source has")
    matches = []
    for module in sources:
        way = [module.tree, *definition(module.tree, qualified(mutant.where))]
        matches += [(module, spot) for spot in spots(way, old, expression, module)]
    if len(matches) != 1:
        names = ", ".join(module.name for module in sources)
        raise Unseedable(
            f"`old` occurs {len(matches)} times in {mutant.where} of {names}; write it as the source has it"
            " now, with enough around it to be the only one"
        )
    module, spot = matches[0]
    legible = {*spot.binding.variables, *spot.binding.wildcards, *module.globals, *NO_VARIABLES}
    inserted = ast.Module(new, [])
    for node in ast.walk(inserted):
        if isinstance(node, ast.Name) and node.id not in {*legible, *bound_in(inserted)}:
            raise Unseedable(f"`new` has {node.id}, which `old` does not have")
    return module, spot


def seeded(root: Path, mutant: Mutant) -> Seeded:
    """Return the file of the tree `root` with the defect in it.

    Raises:
        Unseedable: there is no such function, or the text does not occur exactly once in it.
    """
    with changed(root, mutant) as (module, _):
        text = ast.unparse(ast.fix_missing_locations(module.tree)) + "\n"
    compile(text, str(module.path), "exec")
    return Seeded(module.path, text)


def check(root: Path, mutant: Mutant) -> None:
    """Check that the defect has its place and leaves a program behind, of which only that part is compiled.

    Raises:
        Unseedable: as for `seeded`.
    """
    with changed(root, mutant) as (module, part):
        tree = ast.parse(ast.unparse(ast.fix_missing_locations(part)))
    compile(tree, str(module.path), "exec")


@contextmanager
def changed(root: Path, mutant: Mutant) -> Iterator[tuple[Source, ast.AST]]:
    """Put the defect into the parsed module for a while; yield the module and its outermost changed part."""
    module, spot = located(candidates(root, mutant.where), mutant)
    before = getattr(spot.owner, spot.part)
    setattr(spot.owner, spot.part, copy.copy(before))
    try:
        spot.put([Renamed(spot.binding).visit(statement) for statement in ast.parse(mutant.new).body])
        yield module, [*definition(module.tree, qualified(mutant.where)), module.tree][0]
    finally:
        setattr(spot.owner, spot.part, before)
