"""Random runs keep what they find; plain ones replay it and draw the same, whatever is imported too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from property_runs import EXAMPLES, FACTOR, QUICK, KeptFailures, kept_in

ROOT = Path(__file__).parents[2]
# One example is the simplest, which never fails here; of forty random ones at least one all but surely does.
PROPERTIES = """
import os
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

SOUND = bool(os.environ.get("SOUND"))

@settings(max_examples=100)
@given(st.integers(0, 1_000_000))
def test_all_of_them(number):
    print("drawn", number)

@settings(max_examples=5)
@given(st.integers(0, 1_000_000))
def test_few_of_them(number):
    print("drew", number)

@settings(max_examples=1)
@given(st.integers(0, 1_000_000))
def test_number(number):
    assert SOUND or number < 1000

@settings(max_examples=1)
@pytest.mark.parametrize("least", [100, 200])
@given(st.data())
def test_drawn(least, data):
    assert SOUND or data.draw(st.integers(0, 1000)) < least

class Machine(RuleBasedStateMachine):
    seen = 0

    @rule(number=st.integers(0, 60))
    def hear(self, number):
        self.seen += number > 5
        assert SOUND or self.seen < 1

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=1, stateful_step_count=4)
"""
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "property_runs", "-p", "no:cacheprovider")
ALL = {"test_number", "test_drawn[100]", "test_drawn[200]", "TestMachine::runTest"}


def run(folder: Path, *options: str, **environment: str) -> tuple[set[str], str]:
    """Return the properties that fail, and the whole output."""
    (folder / "test_made_up_properties.py").write_text(PROPERTIES)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfP", *PLUGINS, *options],
        cwd=folder, capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": str(ROOT / "tests/support"), "MAMBASERVE_PROPS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MAMBASERVE_EXAMPLES": str(folder / "examples"),
            **environment,
        },
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return {line.partition("::")[2] for line in lines}, done.stdout


@pytest.mark.slow
def test_what_a_random_run_finds_is_replayed_by_every_plain_run_until_it_is_fixed(tmp_path: Path) -> None:
    assert run(tmp_path)[0] == set(), "the simplest example is too few"
    found, said = run(tmp_path, "-s", "-k", "not all_of_them", MAMBASERVE_PROPS="large")
    assert said.count("drew ") == 5 * FACTOR
    assert found == ALL
    assert "commit it" in said
    assert len(list((tmp_path / "examples").rglob("*.json"))) == len(ALL)
    (kept,) = json.loads(
        (tmp_path / "examples" / "test_made_up_properties" / "test_number.json").read_text()
    )["found"]
    assert any("number=" in line for line in kept["shows"])
    assert run(tmp_path, SOUND="1")[0] == set()
    assert run(tmp_path)[0] == ALL, "not even a run in which all was well forgets one"


def test_plain_runs_draw_the_same_whatever_is_imported_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(f"NUMBERS = [{', '.join(str(100_003 * n) for n in range(1, 7))}]\n")
    only = ("-k", "test_all_of_them", "-s")
    first, second = (run(tmp_path, *only, *more)[1] for more in ((), ("-p", "beside")))
    drawn = [[line for line in said.splitlines() if line.startswith("drawn")] for said in (first, second)]
    assert len(drawn[0]) == QUICK
    assert drawn[0] == drawn[1]


def test_every_kept_example_belongs_to_a_property_that_exists() -> None:
    for path in EXAMPLES.glob("*/*.json"):
        nodeid = json.loads(path.read_text())["property"]
        module, _, name = nodeid.partition("::")
        assert name.partition("::")[0].partition("[")[0] in (ROOT / module).read_text()
        assert path == kept_in(nodeid)
        assert KeptFailures(path).found
