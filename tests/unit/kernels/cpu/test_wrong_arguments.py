"""Wrong arguments of the delta rule's C++ kernels: each is named before a kernel runs.

Strides that are allowed change nothing. The plans are read on the host and are not among the arguments that
can be wrong.
"""

import dataclasses

import pytest

from mamba_kernels.cpu.gated_delta import GatedDelta
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.library import library as loaded
from testmodels.operator_calls import CALLS
from wrong_arguments import Changed, assert_refused, assert_same, changes, results, with_change

NAMES = ("gated_delta_update", "gated_delta_prefill")
HERE = {name: dataclasses.replace(CALLS[name], device=("state", "state")) for name in NAMES}
OF_A_PLAN = "plan."


@pytest.fixture
def library() -> Library:
    """Return the library of any instructions: all share the checks."""
    found = loaded()
    if found is None:
        pytest.skip("there are no C++ kernels here")
    return found


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        pytest.param(name, each, id=f"{name}-{each}")
        for name in NAMES
        for each in changes(HERE[name])
        if not each.path.startswith(OF_A_PLAN)
    ],
)
def test_a_changed_argument_is_named_or_changes_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch, name: str, changed: Changed
) -> None:
    launches: list[None] = []
    run = getattr(library, name)

    def noted(address: int) -> None:
        launches.append(None)
        run(address)

    monkeypatch.setattr(library, name, noted)
    calls = GatedDelta(library)
    operator = {"gated_delta_update": calls.update, "gated_delta_prefill": calls.prefill}[name]
    given = with_change(HERE[name].make(), changed)
    if changed.errors:
        assert_refused(operator, given, changed, launches)
    else:
        assert_same(results(operator, given), results(operator, HERE[name].make()))
        assert launches
