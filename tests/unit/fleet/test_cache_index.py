"""The index of simulated gateways tells what the caches of simulated engines would resume."""

from types import SimpleNamespace

import numpy as np
from benchmarks.cache.cache_run import cache_of, serve

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.cache_index import CacheIndex
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.workload import TraceWorkload

PAGE = 16
PROMPT = np.arange(20 * PAGE + 1, dtype=np.int32)


def test_what_an_engine_would_resume_next_is_told() -> None:
    workload = TraceWorkload("one", PAGE, [Arrival(0.0, len(PROMPT), 1, tuple(range(21)))])
    engines = {
        name: SimpleNamespace(cache=cache_of(CacheSize(8), workload, "RecomputeCost")) for name in ("a", "b")
    }
    index = CacheIndex(engines, "resumable")
    assert not any(index.depths(PROMPT, "").resumable.values())
    serve(engines["a"].cache, PROMPT, 1)
    told = index.depths(PROMPT, "").resumable
    assert told == {"a": serve(engines["a"].cache, PROMPT, 2), "b": 0}
    assert told["a"] > 0
