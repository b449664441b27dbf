"""Every launch of every served model compiles, for every GPU that is named, into what processors can hold.

Covered: the models of `tests/golden/configs`, in bfloat16 and float32, with states of float32 and float16;
the forms of decodes and of prompts, a scan in segments and experts' blocks of each size among them. Launches
that differ only in how many heads share a group count as one. Those that multiply tiles are compiled for
A100, L4, H100, B200 and RTX PRO 6000; the others, of which processors ask little, for the first, the third
and the last. `make compiled` does all of that, with the Triton of the lock and with the oldest that may be
installed, in about half an hour of a processor. The usual run has the H100 and the lock's alone, and of the
launches those that multiply tiles of 16 bits, with two of each other kernel.
"""

import importlib.metadata
import os
from pathlib import Path

import pytest

from compile_matrix import SHARED, Compiled, compiled_matrix
from other_triton import OLDEST, TritonMissing, fetched

FLOAT32_SPILLS = 64
"""Bytes of a thread. No published model is in float32, whose operands are two each while they are multiplied:
scans with N = 256, the delta rule and one form of experts spill up to 40 bytes on some GPUs."""

OLDEST_SPILLS = {("_prefill", 80): 8, ("check_kernel", 80): 8, ("choose_kernel", 80): 112}
"""Bytes of a thread that the oldest Triton spills in launches of 16 bits, by kernel and capability."""
WHOLE = os.environ.get("MAMBASERVE_COMPILED") == "all"
CAPABILITIES = list(SHARED) if WHOLE else [90]


def _check(results: list[Compiled], version: str) -> None:
    assert {result.triton for result in results} == {version}
    assert {result.capability for result in results} == set(CAPABILITIES)
    spilled = [result for result in results if result.stack > _most(result)]
    assert not spilled
    large = [result for result in results if result.shared > SHARED[result.capability]]
    assert not large
    scalar = [result for result in results if result.products and not result.tensor_cores]
    assert not scalar


def _most(result: Compiled) -> int:
    if result.wide:
        return FLOAT32_SPILLS
    known = OLDEST_SPILLS.get((result.launch.split()[0], result.capability), 0)
    return known if result.triton == OLDEST else 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_launch_of_a_served_model_spills_or_exceeds_shared_memory() -> None:
    _check(list(compiled_matrix(CAPABILITIES, whole=WHOLE)), importlib.metadata.version("triton"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not WHOLE, reason="with the oldest Triton `make compiled` compiles")
def test_no_launch_spills_with_the_oldest_triton_either() -> None:
    try:
        folder: Path = fetched(OLDEST)
    except TritonMissing as why:
        pytest.skip(str(why))
    _check(list(compiled_matrix(CAPABILITIES, folder)), OLDEST)
