"""What the extras bring, as it is installed."""

import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("operator", "gateway", "endpoint-picker", "telemetry")
"""Without "server": torch has files by the ten thousand."""


def brought_by_extras() -> dict[str, Distribution]:
    """The distributions of the project without torch, with all that they need, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    wanted += [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    waiting, found = [Requirement(each) for each in wanted], {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        wish = waiting.pop()
        for extra in ("", *wish.extras):
            if (wish.name, extra) in seen:
                continue
            seen.add((wish.name, extra))
            try:
                found[wish.name.lower().replace("_", "-")] = here = distribution(wish.name)
            except PackageNotFoundError:
                continue  # of another platform
            needed = [Requirement(each) for each in here.requires or ()]
            waiting += [
                each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return found


def test_no_two_packages_install_the_same_file() -> None:
    """Which of them would be imported is a matter of the order in which they were installed."""
    found = brought_by_extras()
    assert {"grpcio", "protobuf", "opentelemetry-proto"} <= set(found)
    owners: dict[str, set[str]] = {}
    for name, here in found.items():
        for file in here.files or ():
            owners.setdefault(str(file), set()).add(name)
    assert {file: names for file, names in owners.items() if len(names) > 1} == {}
