"""Distributions of this environment that a set of the project's extras brings, with all that they need."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def brought_by(extras: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions of the base dependencies and of `extras`, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"]]
    requirements += [each for extra in extras for each in project["optional-dependencies"][extra]]
    waiting, distributions = [Requirement(each) for each in requirements], dict[str, Distribution]()
    seen: set[tuple[str, str]] = set()
    while waiting:
        wish = waiting.pop()
        for extra in ("", *wish.extras):
            if (wish.name, extra) in seen:
                continue
            seen.add((wish.name, extra))
            try:
                distributions[wish.name.lower().replace("_", "-")] = here = distribution(wish.name)
            except PackageNotFoundError:
                continue  # of another platform
            needed = [Requirement(each) for each in here.requires or ()]
            waiting += [
                each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return distributions
