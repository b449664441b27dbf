"""The rules of the house for names, prose and shape see each place that breaks one."""

from pathlib import Path

import pytest
from scripts.house_rules import (
    Module,
    ambiguous_constants,
    banned_names,
    crowded_folders,
    fragments,
    long_files,
    packages,
    parse,
    satellites,
    tangled_functions,
)


def source(text: str, name: str = "mamba_thing.module") -> Module:
    """Parse `text` as a module of this name."""
    inside = Path(name.replace(".", "/") + ".py")
    return parse(text, f"server/{inside}", inside)


def test_every_package_is_looked_at() -> None:
    looked_at = {package.name for package in packages()}
    assert {"mamba_api", "mamba_operator", "mamba_gateway", "mamba_server", "mamba_kernels"} <= looked_at


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""Of one engine."""', 1),
        ('"""One engine."""', 0),
        ('"""Offers pages."""', 0),
        ('def f():\n    """It is over."""', 1),
        ('async def f():\n    """\n    To the end.\n    """', 1),
        ('class A:\n    """Those that wait."""\n    x = 1\n    """What waits."""', 2),
        ('x: int = 1\n"""Whoever asks."""', 1),
        ('class A:\n    def __init__(self):\n        self.x = 1\n        """As asked."""', 1),
        ('if True:\n    x = 1\n    """These."""', 1),
        ('x = 1\nprint(x)\n"""Those that nobody reads."""', 0),
        ('x = "Of a string that is a value"', 0),
    ],
)
def test_a_docstring_that_begins_with_a_fragment_is_seen(text: str, number: int) -> None:
    assert len(list(fragments(source(text)))) == number


@pytest.mark.parametrize(
    "text",
    [
        "made = 1",
        "made: int",
        "made += 1",
        "a, (*made, b) = c",
        "self.made = 1",
        "_made = 1",
        "for made in a: pass",
        "[1 for made in a]",
        "with a as made: pass",
        "if (made := 1): pass",
        "def f(made): pass",
        "def f(*made): pass",
        "def f(*, made=1): pass",
        "lambda made: 1",
        "try: pass\nexcept E as made: pass",
        "match a:\n    case [1, made]: pass",
        "match a:\n    case {**made}: pass",
        "class A:\n    made: int",
    ],
)
def test_a_banned_name_is_seen_wherever_it_is_bound(text: str) -> None:
    assert len(list(banned_names(source(text)))) == 1


@pytest.mark.parametrize("text", ["plan = made", "a.made()", "f(made=1)", "unmade = 1", "def made(): pass"])
def test_a_banned_name_may_be_read_and_may_name_a_function(text: str) -> None:
    assert list(banned_names(source(text))) == []


BRANCHES = {
    "elif": "    if a: pass\n" + "    elif b: pass\n" * 15,
    "loop": "    for a in b: pass\n    while c: pass\n" * 8,
    "handler": "    try: pass\n    except A: pass\n    except B: pass\n" * 8,
    "conditional": "    x = 1 if a else 2\n" * 16,
    "operand": "    x = a and b or c\n" * 8,
    "comprehension": "    x = [a for a in b for b in c]\n" * 8,
    "case": "    match a:\n" + "        case 1: pass\n" * 16,
}


@pytest.mark.parametrize("body", BRANCHES.values(), ids=BRANCHES.keys())
def test_a_function_with_sixteen_branches_has_too_many(body: str) -> None:
    (place,) = tangled_functions(source("def f():\n" + body))
    assert (place.rule, place.line) == ("too-many-branches", 1)
    assert "16 branches" in place.detail


def test_fifteen_branches_are_not_too_many_and_a_function_inside_has_its_own() -> None:
    half = "    if a: pass\n" * 8
    inner = "    def g():\n" + "        if a: pass\n" * 8
    assert list(tangled_functions(source("def f():\n" + half + inner))) == []
    assert list(tangled_functions(source("def f():\n" + half * 2))) != []


def test_branches_of_a_triton_kernel_are_its_own_matter() -> None:
    assert list(tangled_functions(source("@triton.jit\ndef f():\n" + "    if a: pass\n" * 16))) == []


def nested(*lines: str) -> str:
    """Write each line one block deeper than the one before it, inside a function."""
    deep = [" " * (4 + 4 * place) + line for place, line in enumerate([*lines, "pass"])]
    return "\n".join(["def f():", *deep])


def test_a_fifth_block_is_nested_too_deep() -> None:
    four = ("if a:", "for b in c:", "with d:", "while e:")
    assert list(tangled_functions(source(nested(*four)))) == []
    (place,) = tangled_functions(source(nested(*four, "if f:")))
    assert place.rule == "nested-too-deep"


def test_a_finally_is_as_deep_as_its_try() -> None:
    lines = nested("if a:", "for b in c:", "with d:", "try:")
    last = ["                finally:", "                    pass"]
    assert list(tangled_functions(source("\n".join([lines, *last])))) == []
    deeper = ["                finally:", "                    if g:", "                        pass"]
    assert len(list(tangled_functions(source("\n".join([lines, *deeper]))))) == 1


def test_an_elif_is_no_deeper_than_its_if() -> None:
    text = "def f():\n    if a: pass\n" + "    elif b: pass\n" * 6
    assert list(tangled_functions(source(text))) == []


def test_a_folder_of_more_than_eighteen_modules_is_crowded() -> None:
    folder = [source("", f"mamba_thing.room.m{number}") for number in range(20)]
    (place,) = crowded_folders([*folder, source("", "mamba_thing.other")])
    assert "20 modules" in place.detail
    assert list(crowded_folders([*folder[:18], source("", "mamba_thing.room.__init__")])) == []


@pytest.mark.parametrize(
    ("lines", "users", "number"),
    [
        (39, ["mamba_thing.room.user"], 1),
        (40, ["mamba_thing.room.user"], 0),
        (39, ["mamba_thing.room.user", "mamba_thing.room.second"], 0),
        (39, ["mamba_thing.elsewhere.user"], 0),
        (39, ["mamba_thing.room.__init__"], 0),
        (39, [], 0),
    ],
)
def test_a_short_module_of_one_neighbour_is_a_satellite(lines: int, users: list[str], number: int) -> None:
    small = source("\n" * lines, "mamba_thing.room.small")
    others = [source("from mamba_thing.room.small import x", name) for name in users]
    assert len(list(satellites([small, *others]))) == number


@pytest.mark.parametrize(
    ("one", "other", "number"),
    [
        ("MOST = 1", "MOST = 2", 2),
        ("MOST = 1", "MOST = 1", 0),
        ("MOST: int = 1 << 3", "MOST = 8.0", 2),
        ('MOST = "a"', 'MOST = "b"', 0),
        ("most = 1", "most = 2", 0),
        ("ITEMS = (1, 2)", "ITEMS = (1, 3)", 0),
    ],
)
def test_one_name_for_two_numbers_is_ambiguous(one: str, other: str, number: int) -> None:
    both = [source(one, "mamba_thing.a"), source(other, "mamba_thing.room.b")]
    assert len(list(ambiguous_constants(both))) == number
    assert list(ambiguous_constants([both[0], source(other, "mamba_other.b")])) == []


def test_the_folders_of_the_server_are_counted_one_by_one() -> None:
    assert source("", "mamba_server.engine.boot").package == "mamba_server.engine"
    assert source("", "mamba_server.engine.scheduling.pace").package == "mamba_server.engine"
    assert source("", "mamba_server.wire").package == "mamba_server"
    assert source("", "mamba_gateway.relay.relay").package == "mamba_gateway"


def test_a_file_of_more_than_six_hundred_lines_is_too_long() -> None:
    assert list(long_files({"a.py": 600})) == []
    (place,) = long_files({"a.py": 600, "b.py": 601})
    assert place.path == "b.py"
