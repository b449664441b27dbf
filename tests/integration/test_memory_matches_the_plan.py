"""The memory an engine really takes is what its plan says, within 2 %, and little beside it."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from mamba_api.v1alpha1 import PlanStatus
from mamba_kernels.cpu.library import library
from mamba_planner.memory import RUNTIME_BYTES
from mamba_planner.workspace import BLOCK_LOGITS
from matrix_size import only_in_gates
from servers import Server, call
from testmodels.checkpoints import random_nemotron_h

BESIDE_THE_PLAN = 400_000_000
"""Bytes of all processes of a server on a CPU that are neither weights nor arena, as the kernel counts what
is resident, what two of them share twice."""


@pytest.mark.slow
def test_resident_memory_of_weights_and_arena_is_the_planned(tmp_path: Path) -> None:
    # Large enough that the interpreter and torch themselves are not what is compared.
    directory = random_nemotron_h(
        tmp_path / "model", hidden_size=512, hybrid_override_pattern="M-M-M*M-", intermediate_size=4096,
        mamba_num_heads=16, mamba_head_dim=64, ssm_state_size=128,
    )  # fmt: skip
    sizes = {}
    planned = {}
    for arena in ("64Mi", "1Gi"):
        with Server(directory, "--arena-bytes", arena, "--max-model-len", "1024", fresh=True) as server:
            process = psutil.Process(server.engine_pid())
            sizes[arena] = process.memory_info().rss
            plan = call(f"{server.admin}/admin/plan")[1]
            planned[arena] = plan["arenaBytes"]
            # The operator shows it where it has none of its own.
            assert PlanStatus.model_validate(plan, by_alias=True, by_name=False).pages == plan["pages"]
    # The difference of two engines that differ in nothing but the arena is the arena.
    took = sizes["1Gi"] - sizes["64Mi"]
    assert took == pytest.approx(planned["1Gi"] - planned["64Mi"], rel=0.02)


@pytest.mark.slow
def test_what_a_server_takes_beside_its_plan_is_bounded(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as file:
        kernels = library()
        if kernels is None or not kernels.is_on_disk(file.fileno()):
            pytest.skip("what importing torch leaves in memory can be put nowhere")
    directory = random_nemotron_h(tmp_path / "model", vocab_size=24_000)
    # Large enough that loading the libraries is not the peak.
    with Server(directory, "--arena-bytes", "512Mi", "--max-model-len", "4096", fresh=True) as server:
        plan = call(f"{server.admin}/admin/plan")[1]
        body = {"model": server.model, "prompt": "one two three " * 250, "max_tokens": 8}
        assert call(f"{server.url}/v1/completions", body)[0] == 200
        weights = sum(line["bytes"] for line in plan["ledger"] if line["item"] == "weights")
        planned = weights + plan["arenaBytes"]
        assert planned > 512 << 20
        engine = psutil.Process(server.engine_pid())
        taken = sum(_peak(process.pid) for process in (engine, *engine.parents()[:1])) - planned
        assert 0 < taken < BESIDE_THE_PLAN


@only_in_gates("18 processor seconds; the unit tests of the workspace try each part of a step")
@pytest.mark.slow
def test_the_worst_step_of_a_large_vocabulary_stays_inside_its_workspace(tmp_path: Path) -> None:
    directory = random_nemotron_h(tmp_path / "model", vocab_size=131_072)
    penalized = {"temperature": 0.8, "presence_penalty": 0.5, "logprobs": 5, "max_tokens": 2}
    scored = {"prompt": [3 + at % 900 for at in range(2048)], "echo": True}
    sampled = {
        "prompt": [[3 + number, 4, 5] for number in range(256)],
        "top_p": 0.9, "top_k": 50, "min_p": 0.01, "frequency_penalty": 0.3, "ignore_eos": True,
    }  # fmt: skip
    # As large as the two need, so that what is touched of the arena is little beside the steps.
    limits = ("--max-model-len", "2304", "--max-running-requests", "257", "--chunked-prefill-tokens", "2816")
    with Server(directory, "--arena-bytes", "128Mi", *limits, fresh=True) as server:
        ledger = {line["item"]: line["bytes"] for line in call(f"{server.admin}/admin/plan")[1]["ledger"]}
        engine = psutil.Process(server.engine_pid())
        ready = engine.memory_info().rss
        # The peak is that of what follows, and not of loading.
        Path(f"/proc/{engine.pid}/clear_refs").write_text("5")

        def answered(body: dict[str, object]) -> int:
            wanted = {"model": server.model, **penalized, **body}
            return call(f"{server.url}/v1/completions", wanted, timeout=300)[0]

        with ThreadPoolExecutor() as clients:
            assert list(clients.map(answered, (scored, sampled))) == [200, 200]
        taken = _peak(engine.pid) - ready
    # A block of logits at least; what is planned for the process itself is there when it is ready.
    assert BLOCK_LOGITS * 4 < taken < ledger["workspace"] - RUNTIME_BYTES["cpu"]


def _peak(pid: int) -> int:
    """Return the peak resident bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "VmHWM":
            return int(rest.split()[0]) * 1024
    raise AssertionError("the kernel does not tell")
