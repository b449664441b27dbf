"""Settings of property tests: the same examples each time, or (MAMBASERVE_PROPS=large) many random ones.

A pytest plugin. A failing random example is written to tests/properties/examples, one file per property, and
every later run replays it before all others. The plugin does not affect the properties themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.database import ExampleDatabase
from hypothesis.internal.charmap import charmap
from hypothesis.internal.conjecture import providers

BUDGET = os.environ.get("MAMBASERVE_PROPS", "")
LARGE = BUDGET == "large"
FACTOR = 100
"""Factor of the number of examples of tests/properties in a random run."""
FACTOR_ELSEWHERE = 10
"""The same of the properties that stand among unit tests, of which there are many."""
QUICK = 25
"""Most examples of a property in an ordinary run. What chance alone would find, random runs look for."""
EXAMPLES = Path(os.environ.get("MAMBASERVE_EXAMPLES", Path(__file__).parents[1] / "properties" / "examples"))

# No deadline and no check of how long drawing takes: both are times of a machine that may be busy.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "random", derandomize=False, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("random" if LARGE else "same")

if not LARGE:
    # Hypothesis draws from the constants of every module of ours that happens to be imported, so that what a
    # property tries would depend on which tests were collected beside it.
    _no_constants = providers.Constants()
    providers._get_local_constants = lambda: _no_constants


class KeptFailures(ExampleDatabase):
    """The choices with which one property failed; `path` is its file, which need not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.found: list[dict[str, Any]] = json.loads(path.read_text())["found"] if path.is_file() else []
        self._kept = {bytes.fromhex(each["choices"]) for each in self.found}
        self._smallest = set(self._kept)
        self._others: dict[bytes, set[bytes]] = defaultdict(set)

    def fetch(self, key: bytes) -> Iterator[bytes]:
        yield from sorted(self._smallest if _is_primary(key) else self._others[key])

    def save(self, key: bytes, value: bytes) -> None:
        (self._smallest if _is_primary(key) else self._others[key]).add(bytes(value))

    def delete(self, key: bytes, value: bytes) -> None:
        (self._smallest if _is_primary(key) else self._others[key]).discard(bytes(value))

    def keep(self, property_name: str, shows: list[str]) -> bool:
        """Write down what is new; whether there was anything."""
        new = sorted(self._smallest - self._kept)
        if new:
            self.found += [{"choices": each.hex(), "shows": shows} for each in new]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(
                json.dumps({"property": property_name, "found": self.found}, indent=1, ensure_ascii=False)
                + "\n"
            )
        return bool(new)


def _is_primary(key: bytes) -> bool:
    """Return whether the key is a failing example's, not of unshrunk or otherwise interesting ones."""
    return not key.endswith((b".secondary", b".pareto"))


def kept_in(nodeid: str, folder: Path = EXAMPLES) -> Path:
    """Return the file of a property: its module with dots, then its name; parameters by their hash."""
    module, _, name = nodeid.partition("::")
    plain, bracket, parameters = name.replace("::", ".").partition("[")
    if bracket:
        plain += "-" + hashlib.sha256(parameters.encode()).hexdigest()[:8]
    parts = Path(module).with_suffix("").parts
    return folder / ".".join(parts[1:] if parts[0] == "tests" else parts) / f"{plain}.json"


class _Chosen:
    """The settings and the seed of one item's property, and how to put others in their place."""

    def __init__(self, item: pytest.Item) -> None:
        run: Any = item.obj  # type: ignore[attr-defined]
        machine = getattr(run, "_hypothesis_state_machine_class", None)
        function = getattr(run, "__func__", run)
        self._seeded: Any = machine or function
        self._settled: Any = item.cls if machine else function  # type: ignore[attr-defined]
        self._name = "settings" if machine else "_hypothesis_internal_use_settings"
        self._before = getattr(self._settled, self._name), getattr(self._seeded, _SEED, None)
        self.settings: settings = self._before[0]
        self.seed: int | None = self._before[1]

    def use(self, changed: settings, seed: int | None) -> None:
        setattr(self._settled, self._name, changed)
        setattr(self._seeded, _SEED, seed)

    def restore(self) -> None:
        self.use(*self._before)


_SEED = "_hypothesis_internal_use_seed"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Replay what was found, and keep what is found now."""
    if not is_hypothesis_test(getattr(item, "obj", None)):
        return (yield)
    chosen, kept, raised = _Chosen(item), KeptFailures(kept_in(item.nodeid)), None
    more = FACTOR if "properties" in item.nodeid else FACTOR_ELSEWHERE
    # A property that names the checks it does without would have this one again.
    quiet = {*chosen.settings.suppress_health_check, HealthCheck.too_slow}
    changes: dict[str, Any] = {"suppress_health_check": quiet}
    seed = chosen.seed
    if LARGE or kept.found:
        changes |= {"derandomize": False, "database": kept}
    examples = chosen.settings.max_examples
    changes["max_examples"] = examples * more if LARGE else min(examples, QUICK)
    if kept.found and not LARGE:
        # Still the same each time: a property cannot be derandomized and replay at once.
        seed = int.from_bytes(hashlib.sha256(item.nodeid.encode()).digest()[:8])
    chosen.use(settings(chosen.settings, **changes), seed)
    try:
        return (yield)
    except BaseException as error:
        raised = error
        raise
    finally:
        chosen.restore()
        if LARGE and kept.keep(item.nodeid, list(getattr(raised, "__notes__", []))):
            item.add_report_section(
                "call", "kept", f"{kept.path}: commit it; every run replays it from now on"
            )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Read the table of characters before workers are forked: in a new checkout it takes seconds to write."""
    if any(item.get_closest_marker("hypothesis") for item in session.items):
        charmap()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Reset the module-wide generators before each test, so that earlier tests of this worker do not matter.

    Only torch's CPU generator is set: `torch.manual_seed` also records for each absent device, with the whole
    stack, the work to do once it exists.
    """
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)
