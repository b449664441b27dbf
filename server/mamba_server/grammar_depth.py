"""Depth of a grammar: the longest path along rules that name rules, and along references of schemas.

The API process checks it before native code reads the grammar, because that code follows such paths without a
bound. Pure, and without recursion of its own.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 800
"""Less than half of the depth that overflows a stack of eight megabytes; generated schemas have some
dozens."""
_RULE = re.compile(
    r"^[ \t]*[?!]?([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def check_depth(grammar: str) -> None:
    """Raise ValueError if a grammar in the notation of llguidance is too deep."""
    depth = max(map(_depth_of_part, _parts(grammar)), default=0)
    if depth > MAX_DEPTH:
        raise ValueError(
            f"is {depth} rules or references deep, more than the {MAX_DEPTH} allowed: merge the parts that "
            "only name each other"
        )


def _parts(grammar: str) -> Iterable[Any]:
    """Return the grammars within one: texts in Lark's notation, and schemas. Raises ValueError."""
    if not grammar.lstrip().startswith("{"):
        return [grammar]
    try:
        document = json.loads(grammar)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    listed = document.get("grammars") if isinstance(document, dict) else None
    parts: list[Any] = []
    for part in listed if isinstance(listed, list) else []:
        if isinstance(part, dict):
            parts += [part[name] for name in ("lark_grammar", "json_schema") if name in part]
    return parts


def _depth_of_part(part: Any) -> int:
    return _depth_of_rules(part) if isinstance(part, str) else _depth_of_schema(part)


def _depth_of_rules(text: str) -> int:
    """Return the depth of a grammar in Lark's notation, with the schemas that stand in it."""
    rules = list(_RULE.finditer(text))
    if not rules:
        return _nesting(text)
    ends = [*(match.start() for match in rules[1:]), len(text)]
    bodies = {match[1]: text[match.end() : end] for match, end in zip(rules, ends, strict=True)}
    inner = {}
    for name, body in bodies.items():
        head, marker, schema = body.partition("%json")
        inner[name] = 1 + _nesting(head)
        if marker:
            try:
                inner[name] += _depth_of_schema(json.loads(schema))
            except (ValueError, RecursionError):
                inner[name] += _nesting(schema)
            bodies[name] = head

    def named(rule: Hashable) -> Iterator[Hashable]:
        return (name for name in _NAME.findall(bodies[str(rule)]) if name in bodies)

    return max(_longest(bodies, named, inner.__getitem__), _nesting(text[: rules[0].start()]))


def _nesting(text: str) -> int:
    """Return the largest number of brackets that are open at once."""
    depth = deepest = 0
    for letter in text:
        if (step := _BRACKETS.get(letter)) is not None:
            depth = max(0, depth + step)
            deepest = max(deepest, depth)
    return deepest


def _depth_of_schema(schema: Any) -> int:
    """Return the depth of a JSON schema: the depth of its values, along the references between them."""
    owners: dict[str, dict[str, Any]] = {"#": {"root": schema}}
    references: dict[str, list[str]] = {}
    depth: dict[str, int] = {}
    # A definition is a node of its own: its content counts where it is referred to.
    waiting = [("#", schema, 1)]
    while waiting:
        place, value, level = waiting.pop()
        depth[place] = max(depth.get(place, 0), level)
        children: Iterable[tuple[str, Any]] = ()
        if isinstance(value, Mapping):
            children = value.items()
            if isinstance(reference := value.get("$ref"), str):
                references.setdefault(place, []).append(reference)
        elif isinstance(value, list):
            children = (("", item) for item in value)
        for key, child in children:
            if key in ("$defs", "definitions") and place == "#" and isinstance(child, Mapping):
                for name, definition in child.items():
                    home = f"#/{key}/{_escaped(name)}"
                    owners[home] = {"root": definition}
                    waiting.append((home, definition, 1))
            elif isinstance(child, Mapping | list):
                waiting.append((place, child, level + 1))

    def referred(place: Hashable) -> Iterator[Hashable]:
        for reference in references.get(str(place), ()):
            # A reference into a definition, or elsewhere into the schema, counts as one to all of it.
            home = "/".join(reference.split("/")[:3])
            yield home if home in owners else "#"

    return _longest(owners, referred, lambda place: depth.get(str(place), 1))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class _HeaviestPath:
    """Search for the heaviest path through a graph, in which each cycle counts with all of its nodes.

    Tarjan's strongly connected components, without recursion: a component is complete after all components
    that it leads to, so its total is computed from theirs.
    """

    def __init__(
        self, following: Callable[[Hashable], Iterable[Hashable]], weight: Callable[[Any], int]
    ) -> None:
        self._following, self._weight = following, weight
        self._order: dict[Hashable, int] = {}
        self._low: dict[Hashable, int] = {}
        self._component: dict[Hashable, int] = {}
        self._stack: list[Hashable] = []
        self._path: list[tuple[Hashable, Iterator[Hashable]]] = []
        self.totals: list[int] = []
        """Weight of the heaviest path from each complete component."""

    def visit(self, first: Hashable) -> None:
        """Complete the components of `first` and of all nodes that it leads to."""
        if first in self._order:
            return
        self._enter(first)
        while self._path:
            node, successors = self._path[-1]
            unvisited = self._next_unvisited(node, successors)
            if unvisited is not None:
                self._enter(unvisited)
                continue
            self._path.pop()
            if self._path:
                parent = self._path[-1][0]
                self._low[parent] = min(self._low[parent], self._low[node])
            if self._low[node] == self._order[node]:
                self._complete(node)

    def _enter(self, node: Hashable) -> None:
        self._order[node] = self._low[node] = len(self._order)
        self._stack.append(node)
        self._path.append((node, iter(list(self._following(node)))))

    def _next_unvisited(self, node: Hashable, successors: Iterator[Hashable]) -> Hashable | None:
        for successor in successors:
            if successor not in self._order:
                return successor
            if successor not in self._component:
                self._low[node] = min(self._low[node], self._order[successor])
        return None

    def _complete(self, node: Hashable) -> None:
        """Take the component that `node` began from the stack, and compute its total."""
        number = len(self.totals)
        members: list[Hashable] = []
        while not members or members[-1] != node:
            members.append(self._stack.pop())
        self._component.update(dict.fromkeys(members, number))
        totals = (
            self.totals[self._component[successor]]
            for member in members
            for successor in self._following(member)
            if self._component[successor] != number
        )
        self.totals.append(sum(map(self._weight, members)) + max(totals, default=0))


def _longest(
    nodes: Iterable[Hashable],
    following: Callable[[Hashable], Iterable[Hashable]],
    weight: Callable[[Any], int],
) -> int:
    """Return the weight of the heaviest path that starts at one of `nodes`; 0 if there are none.

    A cycle on the path counts with the weight of all of its nodes.
    """
    search = _HeaviestPath(following, weight)
    for node in nodes:
        search.visit(node)
    return max(search.totals, default=0)
