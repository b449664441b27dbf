"""A seeded defect, and all that there are: one module for each area beside this one exports `MUTANTS`.

Each is a defect that this kind of software has had somewhere: an exact replacement in the source, and the
tests that have to notice. A replacement whose text is gone fails `make test`.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = ("run", "seeded")
RUNS = "tests/properties/test_engine_random.py::test_every_token_is_the_one_served_alone_whatever_happens"


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in `path`. `tests` run in order until one fails: the quickest comes first."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ("tests/unit/cache", RUNS)


def by_area() -> dict[str, tuple[Mutant, ...]]:
    """The defects of each module beside this one, by its name."""
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
