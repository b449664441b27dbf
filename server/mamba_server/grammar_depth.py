"""How deep a grammar leads: the longest way along rules that name rules, and along references of schemas.

The API process asks before native code reads the grammar, which goes down such ways without a bound. Pure,
and without recursion of its own.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

MOST_DEPTH = 800
"""Less than half of what ended a thread with eight megabytes of stack; generated schemas have some dozens."""
_RULE = re.compile(
    r"^[ \t]*[?!]?([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def check_depth(grammar: str) -> None:
    """Refuse a grammar, as llguidance writes them, that leads too deep. Raises ValueError."""
    depth = max(map(_depth_of_part, _parts(grammar)), default=0)
    if depth > MOST_DEPTH:
        raise ValueError(
            f"leads {depth} rules or references deep, and {MOST_DEPTH} are the most: write the parts that "
            "only name each other as one"
        )


def _parts(grammar: str) -> Iterable[Any]:
    """The grammars within one: texts in Lark's notation, and schemas."""
    if not grammar.lstrip().startswith("{"):
        return [grammar]
    try:
        found = json.loads(grammar)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    listed = found.get("grammars") if isinstance(found, dict) else None
    parts: list[Any] = []
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict):
            parts += [each[name] for name in ("lark_grammar", "json_schema") if name in each]
    return parts


def _depth_of_part(part: Any) -> int:
    return _depth_of_rules(part) if isinstance(part, str) else _depth_of_schema(part)


def _depth_of_rules(text: str) -> int:
    """That of a grammar in Lark's notation, with the schemas that stand in it."""
    found = list(_RULE.finditer(text))
    if not found:
        return _nesting(text)
    ends = [*(match.start() for match in found[1:]), len(text)]
    bodies = {match[1]: text[match.end() : end] for match, end in zip(found, ends, strict=True)}
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

    return max(_longest(bodies, named, inner.__getitem__), _nesting(text[: found[0].start()]))


def _nesting(text: str) -> int:
    """Brackets that are open at once, at most."""
    depth = deepest = 0
    for letter in text:
        if (step := _BRACKETS.get(letter)) is not None:
            depth = max(0, depth + step)
            deepest = max(deepest, depth)
    return deepest


def _depth_of_schema(schema: Any) -> int:
    """That of a JSON schema: of its places, along the references between them."""
    owners: dict[str, dict[str, Any]] = {"#": {"root": schema}}
    references: dict[str, list[str]] = {}
    depth: dict[str, int] = {}
    # A definition is a place of its own: what it holds is counted where it is referred to.
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
            children = (("", each) for each in value)
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
            # What points into a definition, or elsewhere into the schema, counts as all of it.
            home = "/".join(reference.split("/")[:3])
            yield home if home in owners else "#"

    return _longest(owners, referred, lambda place: depth.get(str(place), 1))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _longest(
    nodes: Iterable[Hashable],
    following: Callable[[Hashable], Iterable[Hashable]],
    weight: Callable[[Any], int],
) -> int:
    """The heaviest way through a graph, where nodes that lead to each other count as all of them: Tarjan's
    components, which come in the order in which nothing is asked before it is known."""
    order: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    component: dict[Hashable, int] = {}
    totals: list[int] = []
    held: list[Hashable] = []
    for first in nodes:
        if first in order:
            continue
        path = [(first, iter(list(following(first))))]
        order[first] = low[first] = len(order)
        held.append(first)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    held.append(other)
                    path.append((other, iter(list(following(other)))))
                    break
                if other not in component:
                    low[node] = min(low[node], order[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    members = []
                    while True:
                        members.append(held.pop())
                        component[members[-1]] = len(totals)
                        if members[-1] == node:
                            break
                    below = (
                        totals[component[other]]
                        for member in members
                        for other in following(member)
                        if component[other] != len(totals)
                    )
                    totals.append(sum(map(weight, members)) + max(below, default=0))
    return max(totals, default=0)
