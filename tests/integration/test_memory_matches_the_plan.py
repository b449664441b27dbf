"""The memory an engine really takes is what its plan says, within 2 %."""

from pathlib import Path

import psutil
import pytest

from servers import Server, call
from testmodels.checkpoints import random_nemotron_h


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
        with Server(directory, "--arena-bytes", arena, "--max-model-len", "1024") as server:
            process = psutil.Process(server.engine_pid())
            sizes[arena] = process.memory_info().rss
            plan = call(f"{server.admin}/admin/plan")[1]
            planned[arena] = plan["arenaBytes"]
    # The difference of two engines that differ in nothing but the arena is the arena.
    took = sizes["1Gi"] - sizes["64Mi"]
    assert took == pytest.approx(planned["1Gi"] - planned["64Mi"], rel=0.02)
